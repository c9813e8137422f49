//! Everything that can happen next, each as one sentence.

use std::fmt;

use crate::bounds::PODS;
use crate::tick::Pace;

/// One step. Pods are numbered from zero here and from one when shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Time passes, for each pod at its own pace.
    Tick([Pace; PODS]),
    /// A standby reads the lease; the answer is on its way with what a majority has now.
    Look(usize),
    /// The answer arrives; the standby decides, and sends what it decided.
    See(usize),
    Renew(usize),
    Raise(usize),
    StepDown(usize),
    /// The process dies; another one starts in its place.
    Crash(usize),
    /// The statement a pod waits for reaches the primary.
    Arrive(usize),
    /// A statement nobody waits for reaches the primary.
    ArriveLate(usize),
    /// A majority has the primary's oldest write.
    Replicate,
    /// The answer reaches the pod.
    Answer(usize),
    /// The pod waits no longer.
    GiveUp(usize, Fate),
    FailOver {
        kept: usize,
        offset: i8,
    },
    Delete,
    Claim(usize),
    Save(usize),
    ErrandArrives(usize),
    ErrandAnswered(usize),
    GiveUpErrand(usize, Fate),
    LateErrandArrives(usize),
}

/// What becomes of a request that nobody waits for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It may still arrive.
    Late,
    Lost,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod = |index: usize| format!("pod {}", index + 1);
        match *self {
            Self::Tick(paces) => {
                f.write_str("a tick passes")?;
                for (index, pace) in paces.into_iter().enumerate() {
                    match pace {
                        Pace::Fast => {}
                        Pace::Slow => write!(f, ", slow for {}", pod(index))?,
                        Pace::Stopped => write!(f, ", not counted by {}", pod(index))?,
                    }
                }
                Ok(())
            }
            Self::Look(p) => write!(f, "{} reads the lease", pod(p)),
            Self::See(p) => write!(f, "{} sees what it read, and decides", pod(p)),
            Self::Renew(p) => write!(f, "{} sends a renewal", pod(p)),
            Self::Raise(p) => write!(f, "{} asks to raise its term", pod(p)),
            Self::StepDown(p) => write!(f, "{} steps down and sends a release", pod(p)),
            Self::Crash(p) => write!(f, "{} crashes and starts anew", pod(p)),
            Self::Arrive(p) => write!(f, "the statement of {} reaches the primary", pod(p)),
            Self::ArriveLate(_) => f.write_str("a late statement reaches the primary"),
            Self::Replicate => f.write_str("a majority has the write"),
            Self::Answer(p) => write!(f, "{} gets its answer", pod(p)),
            Self::GiveUp(p, Fate::Late) => write!(f, "{} waits no longer; the statement is still on its way", pod(p)),
            Self::GiveUp(p, Fate::Lost) => write!(f, "{} waits no longer; nothing more comes of it", pod(p)),
            Self::FailOver { kept, offset } => {
                write!(
                    f,
                    "failover: the new primary has {kept} of the unreplicated writes, its clock is {offset:+} ticks off"
                )
            }
            Self::Delete => f.write_str("an operator deletes the lease"),
            Self::Claim(p) => write!(f, "{} claims the checkpoint", pod(p)),
            Self::Save(p) => write!(f, "{} publishes on, and sends a save", pod(p)),
            Self::ErrandArrives(p) => write!(f, "what {} asked reaches the checkpoint", pod(p)),
            Self::ErrandAnswered(p) => write!(f, "{} hears from the checkpoint", pod(p)),
            Self::GiveUpErrand(p, Fate::Late) => write!(f, "{} waits no longer for the checkpoint", pod(p)),
            Self::GiveUpErrand(p, Fate::Lost) => write!(f, "what {} asked of the checkpoint is lost", pod(p)),
            Self::LateErrandArrives(_) => f.write_str("a late claim or save reaches the checkpoint"),
        }
    }
}

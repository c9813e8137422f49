//! What is led, as far as the lease must guard it: a checkpoint that is claimed with a term, and then moved.
//!
//! A new leader claims; the claim is refused to a term that is behind, or that somebody else has claimed already, and the refusal
//! names the term to rise above. Every save carries the term of its leader and is refused after a later claim; a save
//! never lowers the position. Claims and saves arrive when the network likes, long after their sender was deposed. The
//! store decides each at once: a claim or save that a failover undoes is, for everyone, one that never arrived.

use crate::defect::Defect;
use crate::stored::Nonce;

/// The stored checkpoint, within one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Checkpoint {
    /// The last claim: zero when there was none.
    pub term: u8,
    pub claimant: Nonce,
    pub position: u8,
}

/// The producer of one pod: what it was told, and what it has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work {
    /// How far it has published in the term it claimed.
    pub claimed: Option<u8>,
    pub errand: Option<Errand>,
}

impl Work {
    pub const NONE: Self = Self { claimed: None, errand: None };
}

/// A claim or a save under way. It may outlive the term it was sent in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errand {
    pub by: Nonce,
    pub term: u8,
    pub task: Task,
    pub reply: Option<Reply>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    Claim,
    Save { position: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reply {
    /// Go on from here.
    Claimed {
        position: u8,
    },
    Saved,
    Refused {
        seen: u8,
    },
}

/// A promise of the checkpoint that an errand broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A claim was accepted although its term is not above the last one claimed.
    TermReused,
    /// A save was accepted from a leader that is not the last one to have claimed.
    DeposedSaved,
    /// The position fell.
    MovedBack,
}

impl Checkpoint {
    /// Lets one errand in, or refuses it. Also says which promises that broke, which without a defect is none.
    pub fn receive(&mut self, errand: &Errand, defect: Option<Defect>) -> (Reply, Vec<Breach>) {
        let before = *self;
        let own = errand.term == before.term && errand.by == before.claimant;
        let mut breaches = Vec::new();
        let reply = match errand.task {
            Task::Claim => {
                let rises = errand.term > before.term;
                let blind = defect == Some(Defect::ClaimByTermAlone) && errand.term == before.term;
                if !(rises || own || blind) {
                    return (Reply::Refused { seen: before.term }, breaches);
                }
                *self = Self { term: errand.term, claimant: errand.by, ..before };
                if !own && errand.term <= before.term {
                    breaches.push(Breach::TermReused);
                }
                Reply::Claimed { position: before.position }
            }
            Task::Save { position } => {
                let fenced = match defect {
                    Some(Defect::NoFence | Defect::BareSave) => false,
                    Some(Defect::ClaimByTermAlone) => errand.term < before.term,
                    _ => !own,
                };
                let falls = position < before.position && defect != Some(Defect::BareSave);
                if fenced || falls {
                    return (Reply::Refused { seen: before.term }, breaches);
                }
                self.position = position;
                if !own {
                    breaches.push(Breach::DeposedSaved);
                }
                if position < before.position {
                    breaches.push(Breach::MovedBack);
                }
                Reply::Saved
            }
        };
        (reply, breaches)
    }
}

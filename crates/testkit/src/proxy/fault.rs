//! What can go wrong on the way, and what each fault means for one direction of one connection. Pure.

use std::time::Duration;

/// Which way bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToTarget,
    /// Answers.
    ToClient,
}

/// What the network does instead of carrying bytes both ways at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Open connections end with FIN, as when the other process exits; new ones are refused.
    Cut,
    /// Open connections end with RST; new ones are accepted and then end so at once.
    Reset,
    /// Connections open and stay open, whatever is sent is taken and lost, nothing ever arrives.
    BlackHole,
    /// A black hole in one direction only. With `dead: ToClient` the request is delivered and its answer lost.
    HalfOpen { dead: Direction },
    /// Nothing moves and nothing is lost: the sender runs into back-pressure, [`heal`](super::Proxy::heal) delivers
    /// what was held.
    Freeze,
    /// A freeze of one direction only. With `ToClient` the request is delivered and its answer comes late.
    Withhold(Direction),
    /// Every byte of that direction arrives, this much later.
    Delay(Direction, Duration),
}

impl Fault {
    /// The fault, but only once `bytes` have been delivered in `direction`: not one byte fewer, not one more.
    pub fn after(self, bytes: u64, direction: Direction) -> Rule {
        Rule { direction, bytes, fault: self }
    }

    /// How this fault ends a connection, if it does.
    pub(super) fn ending(self) -> Option<Ending> {
        match self {
            Fault::Cut => Some(Ending::Cut),
            Fault::Reset => Some(Ending::Reset),
            Fault::BlackHole | Fault::HalfOpen { .. } | Fault::Freeze | Fault::Withhold(_) | Fault::Delay(..) => None,
        }
    }

    fn course(self, direction: Direction) -> Course {
        match self {
            Fault::BlackHole => Course::Swallow,
            Fault::HalfOpen { dead } if dead == direction => Course::Swallow,
            Fault::Freeze => Course::Hold,
            Fault::Cut | Fault::Reset => Course::Stop,
            Fault::Withhold(held) if held == direction => Course::Hold,
            Fault::Delay(slow, by) if slow == direction => Course::Flow { delay: by },
            Fault::HalfOpen { .. } | Fault::Withhold(_) | Fault::Delay(..) => Course::FREE,
        }
    }
}

/// A fault that waits for a byte count: see [`Fault::after`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) direction: Direction,
    pub(super) bytes: u64,
    pub(super) fault: Fault,
}

/// How a connection through the proxy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both peers had said all they had to say.
    Closed,
    /// A peer broke it off, or the target could not be reached; the other peer was reset.
    Broken,
    /// By [`Fault::Cut`].
    Cut,
    /// By [`Fault::Reset`], or by healing after bytes were lost: TCP never delivers a stream with a hole.
    Reset,
}

/// What becomes of the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    Flow {
        delay: Duration,
    },
    Swallow,
    Hold,
    /// The connection is about to end.
    Stop,
}

impl Course {
    const FREE: Course = Course::Flow { delay: Duration::ZERO };

    pub(super) fn under(fault: Option<Fault>, direction: Direction) -> Course {
        fault.map_or(Course::FREE, |fault| fault.course(direction))
    }
}

#[cfg(test)]
mod tests {
    use super::{Course::*, Direction::*, *};

    const LATE: Duration = Duration::from_millis(250);

    #[test]
    fn each_fault_has_its_course_in_each_direction() {
        let cases = [
            (None, Course::FREE, Course::FREE),
            (Some(Fault::Cut), Stop, Stop),
            (Some(Fault::Reset), Stop, Stop),
            (Some(Fault::BlackHole), Swallow, Swallow),
            (Some(Fault::HalfOpen { dead: ToClient }), Course::FREE, Swallow),
            (Some(Fault::HalfOpen { dead: ToTarget }), Swallow, Course::FREE),
            (Some(Fault::Freeze), Hold, Hold),
            (Some(Fault::Withhold(ToClient)), Course::FREE, Hold),
            (Some(Fault::Withhold(ToTarget)), Hold, Course::FREE),
            (Some(Fault::Delay(ToClient, LATE)), Course::FREE, Flow { delay: LATE }),
            (Some(Fault::Delay(ToTarget, LATE)), Flow { delay: LATE }, Course::FREE),
        ];
        for (fault, to_target, to_client) in cases {
            assert_eq!(Course::under(fault, ToTarget), to_target, "{fault:?}");
            assert_eq!(Course::under(fault, ToClient), to_client, "{fault:?}");
        }
    }

    #[test]
    fn only_a_cut_and_a_reset_end_a_connection() {
        assert_eq!(Fault::Cut.ending(), Some(Ending::Cut));
        assert_eq!(Fault::Reset.ending(), Some(Ending::Reset));
        for lasting in
            [Fault::BlackHole, Fault::HalfOpen { dead: ToClient }, Fault::Freeze, Fault::Delay(ToClient, LATE)]
        {
            assert_eq!(lasting.ending(), None, "{lasting:?}");
        }
    }
}

//! Network faults, and what each means for one direction of one connection. Pure.

use std::time::Duration;

/// Direction of travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToTarget,
    /// Responses.
    ToClient,
}

/// What the network does instead of forwarding bytes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    /// Open connections close with FIN, as when the other process exits; new ones are refused.
    Cut,
    /// Open connections close with RST; new ones are accepted and reset at once.
    Reset,
    /// Connections open and stay open; every byte is accepted and lost.
    BlackHole,
    /// A black hole in one direction only. With `dead: ToClient` the request is delivered and its response lost.
    HalfOpen { dead: Direction },
    /// Nothing moves and nothing is lost: the sender meets back-pressure, and [`heal`](super::Proxy::heal) delivers what
    /// was held.
    Freeze,
    /// A freeze of one direction only. With `ToClient` the request is delivered and its response comes late.
    Withhold(Direction),
    /// Every byte of that direction arrives later by this duration.
    Delay(Direction, Duration),
}

impl NetworkFault {
    /// Applies the fault after exactly `bytes` bytes were delivered in `direction`.
    pub fn after(self, bytes: u64, direction: Direction) -> FaultRule {
        FaultRule { direction, bytes, fault: self }
    }

    /// How this fault closes a connection, if it does.
    pub(super) fn close_reason(self) -> Option<ProxyCloseReason> {
        match self {
            NetworkFault::Cut => Some(ProxyCloseReason::Cut),
            NetworkFault::Reset => Some(ProxyCloseReason::Reset),
            NetworkFault::BlackHole
            | NetworkFault::HalfOpen { .. }
            | NetworkFault::Freeze
            | NetworkFault::Withhold(_)
            | NetworkFault::Delay(..) => None,
        }
    }

    fn byte_flow(self, direction: Direction) -> ByteFlow {
        match self {
            NetworkFault::BlackHole => ByteFlow::Drop,
            NetworkFault::HalfOpen { dead } if dead == direction => ByteFlow::Drop,
            NetworkFault::Freeze => ByteFlow::Hold,
            NetworkFault::Cut | NetworkFault::Reset => ByteFlow::Stop,
            NetworkFault::Withhold(held) if held == direction => ByteFlow::Hold,
            NetworkFault::Delay(slow, by) if slow == direction => ByteFlow::Flow { delay: by },
            NetworkFault::HalfOpen { .. } | NetworkFault::Withhold(_) | NetworkFault::Delay(..) => ByteFlow::FREE,
        }
    }
}

/// A fault that applies at a byte count: see [`NetworkFault::after`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRule {
    pub(super) direction: Direction,
    pub(super) bytes: u64,
    pub(super) fault: NetworkFault,
}

/// Why a connection through the proxy closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyCloseReason {
    /// Both peers closed their side.
    Closed,
    /// A peer disconnected, or the target was unreachable; the other peer was reset.
    Broken,
    /// By [`NetworkFault::Cut`].
    Cut,
    /// By [`NetworkFault::Reset`], or by a heal after bytes were lost: TCP never delivers a stream with a gap.
    Reset,
}

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteFlow {
    Flow {
        delay: Duration,
    },
    Drop,
    Hold,
    /// The connection is about to close.
    Stop,
}

impl ByteFlow {
    const FREE: ByteFlow = ByteFlow::Flow { delay: Duration::ZERO };

    pub(super) fn under(fault: Option<NetworkFault>, direction: Direction) -> ByteFlow {
        fault.map_or(ByteFlow::FREE, |fault| fault.byte_flow(direction))
    }
}

#[cfg(test)]
mod tests {
    use super::{ByteFlow::*, Direction::*, *};

    const LATE: Duration = Duration::from_millis(250);

    #[test]
    fn each_fault_has_a_byte_flow_in_each_direction() {
        let cases = [
            (None, ByteFlow::FREE, ByteFlow::FREE),
            (Some(NetworkFault::Cut), Stop, Stop),
            (Some(NetworkFault::Reset), Stop, Stop),
            (Some(NetworkFault::BlackHole), Drop, Drop),
            (Some(NetworkFault::HalfOpen { dead: ToClient }), ByteFlow::FREE, Drop),
            (Some(NetworkFault::HalfOpen { dead: ToTarget }), Drop, ByteFlow::FREE),
            (Some(NetworkFault::Freeze), Hold, Hold),
            (Some(NetworkFault::Withhold(ToClient)), ByteFlow::FREE, Hold),
            (Some(NetworkFault::Withhold(ToTarget)), Hold, ByteFlow::FREE),
            (Some(NetworkFault::Delay(ToClient, LATE)), ByteFlow::FREE, Flow { delay: LATE }),
            (Some(NetworkFault::Delay(ToTarget, LATE)), Flow { delay: LATE }, ByteFlow::FREE),
        ];
        for (fault, to_target, to_client) in cases {
            assert_eq!(ByteFlow::under(fault, ToTarget), to_target, "{fault:?}");
            assert_eq!(ByteFlow::under(fault, ToClient), to_client, "{fault:?}");
        }
    }

    #[test]
    fn only_a_cut_and_a_reset_close_a_connection() {
        assert_eq!(NetworkFault::Cut.close_reason(), Some(ProxyCloseReason::Cut));
        assert_eq!(NetworkFault::Reset.close_reason(), Some(ProxyCloseReason::Reset));
        for lasting in [
            NetworkFault::BlackHole,
            NetworkFault::HalfOpen { dead: ToClient },
            NetworkFault::Freeze,
            NetworkFault::Delay(ToClient, LATE),
        ] {
            assert_eq!(lasting.close_reason(), None, "{lasting:?}");
        }
    }
}

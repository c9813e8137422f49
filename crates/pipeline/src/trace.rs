//! Trace context across Service Bus: which events are traced, and the ids of their first spans.
//!
//! Everything derives from the message id, which is a hash: an event has the same trace whichever leader sends it, and every pod samples the same
//! events. The context travels as W3C trace context on the message. Knows no exporter: see [`crate::publish::PublishTracer`] and
//! [`crate::view`].

use std::fmt;
use std::num::NonZeroU32;
use std::time::SystemTime;

use crate::publish::message::EventMessageId;

/// The wall clock, for spans and latencies.
#[expect(clippy::disallowed_methods, reason = "for display only: no decision depends on it")]
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// The sampling rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceSampling {
    /// Traces ids whose random part is at most this; 0 traces none.
    below: u64,
}

impl TraceSampling {
    pub const NONE: Self = Self { below: 0 };

    /// Traces one event in `number`, at random.
    pub const fn one_in(number: NonZeroU32) -> Self {
        Self { below: u64::MAX / number.get() as u64 }
    }

    pub fn includes(self, id: &EventMessageId) -> bool {
        // W3C samplers use the lower half of the trace id.
        self.below > 0 && parse_hex(id.as_str(), 16, 16) <= self.below
    }
}

/// A W3C trace context: the trace id and the parent span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: u128,
    pub span: u64,
    pub sampled: bool,
}

impl TraceContext {
    /// The context of the send span of a message.
    pub fn for_message(id: &EventMessageId, sampled: bool) -> Self {
        let text = id.as_str();
        let trace = u128::from(parse_hex(text, 0, 16)) << 64 | u128::from(parse_hex(text, 16, 16));
        Self { trace, span: parse_hex(text, 32, 16), sampled }
    }

    /// The root span: the capture of the event.
    pub fn root_span(id: &EventMessageId) -> u64 {
        parse_hex(id.as_str(), 48, 16)
    }

    /// Parses a `traceparent` of version 00, or of a later version with the same leading fields.
    pub fn parse(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let sizes = (version.len(), trace.len(), span.len(), flags.len()) == (2, 32, 16, 2);
        if !sizes || version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let flags = u8::from_str_radix(flags, 16).ok()?;
        let (trace, span) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
        (trace != 0 && span != 0).then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

fn parse_hex(id: &str, from: usize, count: usize) -> u64 {
    u64::from_str_radix(&id[from..from + count], 16).expect("a message id is 64 hexadecimal digits")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mongodb::bson::{RawDocumentBuf, doc};

    use super::*;
    use crate::event::{ChangeEvent, Namespace, Operation, ResumeToken};

    fn id(number: u32) -> EventMessageId {
        let event = ChangeEvent {
            token: ResumeToken::try_from(doc! { "_data": format!("82{number:08X}") }).unwrap(),
            operation: Operation::Insert,
            namespace: Arc::new(Namespace::new("shop", "events")),
            key: 7.into(),
            aggregate: None,
            event_type: None,
            sequence: None,
            cluster_time: None,
            wall_time: None,
            document: RawDocumentBuf::new(),
        };
        EventMessageId::for_event(&event, None)
    }

    fn one_in(number: u32) -> TraceSampling {
        TraceSampling::one_in(NonZeroU32::new(number).unwrap())
    }

    #[test]
    fn a_trace_context_round_trips() {
        for sampled in [false, true] {
            let context = TraceContext::for_message(&id(1), sampled);
            let text = context.to_string();
            assert_eq!(text.len(), 55);
            assert_eq!(TraceContext::parse(&text), Some(context));
            assert_eq!(&text[3..35], &id(1).as_str()[..32]);
        }
        assert_ne!(TraceContext::for_message(&id(1), true).span, TraceContext::root_span(&id(1)));
    }

    #[test]
    fn an_invalid_traceparent_is_none() {
        let zeroes = format!("00-{:032x}-{:016x}-01", 0, 7);
        for text in ["", "00", "00-1-2-01", &zeroes, "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert!(TraceContext::parse(later).is_some_and(|context| context.sampled));
    }

    #[test]
    fn one_event_in_n_is_sampled() {
        let taken = |sampling: TraceSampling| (0..4_000).filter(|number| sampling.includes(&id(*number))).count();
        assert_eq!((taken(TraceSampling::NONE), taken(one_in(1))), (0, 4_000));
        assert!((700..1_300).contains(&taken(one_in(4))));
        // A higher sampling rate includes the events of a lower one.
        assert!((0..1_000).map(id).filter(|id| one_in(8).includes(id)).all(|id| one_in(4).includes(&id)));
    }
}

//! Protocol violations: each gets the right error and closes as little as possible.

use std::time::Duration;

use amqp::frame::ProtocolHeader;
use amqp::performative::{Attach, Begin, Detach, Flow, Performative, Transfer};
use amqp::{Config, ConnectionEvent, Role, Source, Symbol, Target, condition};
use bytes::Bytes;

use crate::fixture::{RawFramePeer, begin, open, requested};
use crate::settlement::disposition;
use crate::transfer::{receiving, transfer};

/// The error frame that the peer received.
fn verdict(raw: &mut RawFramePeer) -> (&'static str, Symbol) {
    let last = raw.performatives().pop().expect("an answer");
    let error = match &last {
        Performative::Close(close) => close.error.clone(),
        Performative::End(end) => end.error.clone(),
        Performative::Detach(detach) => detach.error.clone(),
        other => panic!("{other:?}"),
    };
    (last.name(), error.expect("an error").condition)
}

fn flow(handle: u32) -> Performative {
    Performative::Flow(Flow { handle: Some(handle), next_incoming_id: Some(0), incoming_window: 9, ..Flow::default() })
}

#[test]
fn malformed_bytes_close_the_connection() {
    let cases: [(&[u8], Symbol); 7] = [
        (&[0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0], condition::FRAMING_ERROR),
        (&[0, 0, 0, 3, 2, 0, 0, 0], condition::FRAMING_ERROR),
        (&[0, 0, 0, 8, 9, 0, 0, 0], condition::FRAMING_ERROR),
        (&[0, 0, 0, 8, 2, 7, 0, 0], condition::FRAMING_ERROR),
        (&[0, 0, 0, 12, 2, 1, 0, 0, 0, 0x53, 0x41, 0x45], condition::FRAMING_ERROR),
        (&[0, 0, 0, 12, 2, 0, 0, 0, 0, 0x53, 0x14, 0x45], condition::DECODE_ERROR),
        (&[0, 0, 0, 12, 2, 0, 0, 0, 0, 0x53, 0x99, 0x45], condition::DECODE_ERROR),
    ];
    for (bytes, expected) in cases {
        let mut raw = receiving(Config::default());
        raw.write(bytes);
        assert_eq!(verdict(&mut raw), ("close", expected), "{bytes:x?}");
        assert!(raw.server.is_closed());
        raw.write(&[0; 100]);
        assert_eq!(raw.server.take_output().len(), 0, "nothing follows a close");
    }
}

#[test]
fn frames_out_of_turn_close_the_connection() {
    let answer = Performative::Begin(Box::new(Begin { remote_channel: Some(77), ..unbox(begin()) }));
    let cases: [(u16, Performative, Symbol); 5] = [
        (0, open(), condition::ILLEGAL_STATE),
        (0, begin(), condition::ILLEGAL_STATE),
        (9, flow(0), condition::NOT_ALLOWED),
        (5000, begin(), condition::FRAMING_ERROR),
        (1, answer, condition::NOT_ALLOWED),
    ];
    for (channel, frame, expected) in cases {
        let mut raw = receiving(Config::default());
        raw.frame(channel, &frame);
        assert_eq!(verdict(&mut raw), ("close", expected), "{frame:?}");
    }
}

fn unbox(begin: Performative) -> Begin {
    let Performative::Begin(begin) = begin else { panic!("{begin:?}") };
    *begin
}

#[test]
fn a_frame_before_open_closes_the_connection() {
    let mut raw = RawFramePeer::new(Config::default());
    raw.write(&ProtocolHeader::Amqp.bytes());
    raw.frame(0, &begin());
    assert_eq!(verdict(&mut raw), ("close", condition::ILLEGAL_STATE));
}

#[test]
fn a_session_violation_ends_only_that_session() {
    let long_tag = Transfer { delivery_tag: Some(Bytes::from(vec![0; 33])), ..transfer(0, false) };
    let attach = |handle| {
        Performative::Attach(Box::new(Attach { handle, ..Attach::sender("x", Source::at("a"), Target::at("b")) }))
    };
    let cases: [(Performative, Symbol); 8] = [
        (flow(9), condition::UNATTACHED_HANDLE),
        (Performative::Detach(Detach { handle: 9, ..Detach::default() }), condition::UNATTACHED_HANDLE),
        (Performative::Transfer(Transfer { handle: 9, ..transfer(0, false) }), condition::UNATTACHED_HANDLE),
        (attach(0), condition::HANDLE_IN_USE),
        (Performative::Transfer(Transfer::default()), condition::INVALID_FIELD),
        (Performative::Transfer(long_tag), condition::INVALID_FIELD),
        (disposition(9, 3), condition::INVALID_FIELD),
        (Performative::Transfer(Transfer { delivery_id: None, ..transfer(0, false) }), condition::INVALID_FIELD),
    ];
    for (frame, expected) in cases {
        let mut raw = receiving(Config::default());
        raw.frame(1, &begin());
        raw.frames();
        raw.events();
        raw.frame(0, &frame);
        assert_eq!(verdict(&mut raw), ("end", expected), "{frame:?}");
        let events = raw.events();
        assert!(
            matches!(
                &events[..],
                [ConnectionEvent::Detached { .. }, ConnectionEvent::SessionEnded { error: Some(_), .. }]
            ),
            "{events:?}"
        );
        // Frames in flight are ignored; the other session continues.
        raw.frame(0, &Performative::Transfer(transfer(0, false)));
        raw.frame(1, &attach(0));
        assert!(requested(&raw.events()).is_some());
        assert!(!raw.server.is_closed());
    }
}

#[test]
fn a_handle_above_the_maximum_closes_the_connection() {
    let mut raw = RawFramePeer::begun(Config { handle_max: 7, ..Config::default() });
    let attach = Attach { handle: 8, ..Attach::sender("x", Source::at("a"), Target::at("b")) };
    raw.frame(0, &Performative::Attach(Box::new(attach)));
    assert_eq!(verdict(&mut raw), ("close", condition::FRAMING_ERROR));
}

#[test]
fn deliveries_beyond_the_credit_detach_only_the_link() {
    let mut raw = receiving(Config::default());
    for id in 0..11 {
        raw.frame_with(0, &Performative::Transfer(transfer(id, false)), b"x");
    }
    assert_eq!(verdict(&mut raw), ("detach", condition::TRANSFER_LIMIT_EXCEEDED));
    let events = raw.events();
    assert_eq!(events.iter().filter(|event| matches!(event, ConnectionEvent::Delivery(_))).count(), 10);
    assert!(matches!(events.last(), Some(ConnectionEvent::Detached { error: Some(_), .. })));
    // Deliveries in flight are ignored, and the peer's detach gets no reply.
    raw.frame_with(0, &Performative::Transfer(transfer(11, false)), b"x");
    raw.frame(0, &Performative::Detach(Detach { handle: 0, closed: true, error: None }));
    assert_eq!(raw.performatives(), []);
    assert_eq!(raw.events(), []);
}

#[test]
fn a_delivery_before_the_attach_reply_refuses_the_link() {
    let mut raw = RawFramePeer::begun(Config::default());
    raw.frame(0, &Performative::Attach(Box::new(Attach::sender("s", Source::at("me"), Target::at("q")))));
    raw.frame_with(0, &Performative::Transfer(transfer(0, false)), b"x");
    let answers = raw.performatives();
    assert!(matches!(&answers[..], [Performative::Attach(_), Performative::Detach(_)]));
}

#[test]
fn transfers_beyond_the_window_end_the_session() {
    // A window of one is renewed after each transfer, so it can be broken only while output is not the issue: none.
    let mut raw = receiving(Config { incoming_window: 0, ..Config::default() });
    raw.frame_with(0, &Performative::Transfer(transfer(0, false)), b"x");
    assert_eq!(verdict(&mut raw), ("end", condition::WINDOW_VIOLATION));
}

#[test]
fn links_are_bounded_per_connection() {
    let mut raw = RawFramePeer::begun(Config { max_links: 3, ..Config::default() });
    for handle in 0..4 {
        let attach = Attach { handle, ..Attach::sender(handle.to_string(), Source::at("a"), Target::at("b")) };
        raw.frame(0, &Performative::Attach(Box::new(attach)));
    }
    assert_eq!(verdict(&mut raw), ("end", condition::RESOURCE_LIMIT_EXCEEDED));
}

#[test]
fn attaches_that_wait_are_bounded_in_bytes() {
    let mut raw = RawFramePeer::begun(Config { max_incomplete_bytes: 100_000, ..Config::default() });
    let mut waiting = 0;
    for handle in 0..10 {
        let attach =
            Attach { handle, ..Attach::sender(handle.to_string(), Source::at(&"a".repeat(20_000)), Target::at("b")) };
        raw.frame(0, &Performative::Attach(Box::new(attach)));
        waiting += usize::from(requested(&raw.events()).is_some());
    }
    assert_eq!(waiting, 4);
    assert!(!raw.server.is_closed());
}

#[test]
fn a_flow_cannot_make_credit_on_a_link_we_receive_on() {
    let mut raw = receiving(Config::default());
    for count in [u32::MAX, 5_000_000, 11] {
        let flow = Flow {
            handle: Some(0),
            delivery_count: Some(count),
            link_credit: Some(u32::MAX),
            next_incoming_id: Some(0),
            incoming_window: 9,
            ..Flow::default()
        };
        raw.frame(0, &Performative::Flow(flow));
    }
    for id in 0..11 {
        raw.frame_with(0, &Performative::Transfer(transfer(id, false)), b"x");
    }
    assert_eq!(verdict(&mut raw), ("detach", condition::TRANSFER_LIMIT_EXCEEDED));
}

#[test]
fn a_tiny_idle_timeout_does_not_flood_heartbeats() {
    let mut raw = RawFramePeer::new(Config::default());
    raw.write(&ProtocolHeader::Amqp.bytes());
    let Performative::Open(mut hasty) = open() else { unreachable!() };
    hasty.idle_time_out = Some(1);
    raw.frame(0, &Performative::Open(hasty));
    raw.frames();
    let next = raw.server.next_deadline().unwrap();
    assert!(next - raw.now >= Duration::from_millis(20));
}

#[test]
fn a_command_for_the_wrong_role_fails() {
    let mut raw = RawFramePeer::begun(Config::default());
    raw.frame(0, &Performative::Attach(Box::new(Attach::receiver("r", Source::at("q"), Target::at("me")))));
    let (link, request) = requested(&raw.events()).unwrap();
    assert_eq!(request.role, Role::Receiver);
    raw.server.accept_attach(link, request.reply()).unwrap();
    raw.frames();
    raw.frame_with(0, &Performative::Transfer(transfer(0, false)), b"x");
    assert_eq!(verdict(&mut raw), ("end", condition::NOT_ALLOWED));
}

//! Transfers: single and multi-frame, credit, windows, drain, size limits.

use amqp::performative::{Flow, Performative, Transfer};
use amqp::{
    Attach, CommandError, Config, ConnectionEvent, DeliveryState, LinkId, OutgoingDelivery, Source, Target, condition,
};
use bytes::Bytes;

use crate::fixture::{ConnectionPair, RawFramePeer, frames_of, requested};

fn payloads(events: &[ConnectionEvent]) -> Vec<Bytes> {
    let deliveries = events.iter().filter_map(|event| match event {
        ConnectionEvent::Delivery(delivery) => Some(delivery.payload.clone()),
        _ => None,
    });
    deliveries.collect()
}

fn send(pair: &mut ConnectionPair, link: LinkId, payload: &[u8]) -> u32 {
    pair.client.transfer(link, OutgoingDelivery { tag: b"t", ..OutgoingDelivery::default() }, &[payload]).unwrap()
}

#[test]
fn a_delivery_arrives_with_its_tag_format_and_parts_joined() {
    let mut pair = ConnectionPair::new();
    let (ours, theirs) = pair.sender();
    pair.server.set_credit(theirs, 1).unwrap();
    pair.run();
    assert_eq!(pair.take_client_events(), [ConnectionEvent::Credit { link: ours, credit: 1, drain: false }]);
    let outgoing =
        OutgoingDelivery { tag: &[9; 16], message_format: 0x8001_3700, settled: true, ..OutgoingDelivery::default() };
    pair.client.transfer(ours, outgoing, &[b"he", b"", b"llo"]).unwrap();
    pair.run();
    let events = pair.take_server_events();
    let [ConnectionEvent::Delivery(delivery)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&delivery.payload[..], &delivery.tag[..]), (&b"hello"[..], &[9; 16][..]));
    assert_eq!((delivery.message_format, delivery.settled, delivery.link), (0x8001_3700, true, theirs));
    assert!(pair.client.transfer(ours, outgoing, &[b"x"]).is_err(), "credit is used up");
}

#[test]
fn a_large_delivery_is_split_into_frames_and_joined() {
    let mut pair = ConnectionPair::with(Config::default(), Config { max_frame_size: 600, ..Config::default() });
    let (ours, theirs) = pair.sender();
    pair.server.set_credit(theirs, 10).unwrap();
    pair.run();
    let large: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
    send(&mut pair, ours, &large);
    send(&mut pair, ours, b"");
    let wire = pair.client.take_output();
    let frames = frames_of(wire.clone());
    assert!(frames.len() > 170);
    for (index, (_, frame, _)) in frames.iter().enumerate() {
        let Performative::Transfer(transfer) = frame else { panic!("{frame:?}") };
        assert_eq!(transfer.more, index < frames.len() - 2);
    }
    pair.to_server.extend_from_slice(&wire);
    pair.run();
    assert_eq!(payloads(&pair.take_server_events()), [Bytes::from(large), Bytes::new()]);
}

#[test]
fn no_frame_is_larger_than_the_peer_takes() {
    for size in 0..1300 {
        let mut pair = ConnectionPair::with(Config::default(), Config { max_frame_size: 512, ..Config::default() });
        let (ours, theirs) = pair.sender();
        pair.server.set_credit(theirs, 1).unwrap();
        pair.run();
        send(&mut pair, ours, &vec![0; size]);
        let mut wire = pair.client.take_output();
        let total = wire.len();
        while let Some(frame) = wire.first_chunk::<4>().map(|size| u32::from_be_bytes(*size) as usize) {
            assert!(frame <= 512);
            wire = wire.slice(frame..);
        }
        assert!(total >= size);
    }
}

#[test]
fn deliveries_wait_for_the_window_and_keep_their_order() {
    let narrow = Config { incoming_window: 3, max_frame_size: 512, ..Config::default() };
    let wrapping = Config { first_outgoing_id: u32::MAX - 20, ..Config::default() };
    let mut pair = ConnectionPair::with(wrapping, narrow);
    let (ours, theirs) = pair.sender();
    pair.server.keep_credit(theirs, 500).unwrap();
    pair.run();
    let sent: Vec<_> = (0..200usize).map(|n| Bytes::from(vec![n as u8; n * 11])).collect();
    let ids: Vec<_> = sent.iter().map(|payload| send(&mut pair, ours, payload)).collect();
    assert!(ids.contains(&0), "ids wrap");
    assert!(pair.client.backlog_len() > 100_000, "the backlog is reported");
    pair.take_server_events();
    pair.run();
    assert_eq!(pair.client.backlog_len(), 0);
    let events = pair.take_server_events();
    assert_eq!(payloads(&events), sent);
    for event in events {
        if let ConnectionEvent::Delivery(delivery) = event {
            pair.server.dispose(theirs, delivery.id, delivery.id, true, Some(DeliveryState::Accepted)).unwrap();
        }
    }
    pair.run();
    let settled: Vec<u32> = pair
        .take_client_events()
        .into_iter()
        .flat_map(|event| match event {
            ConnectionEvent::Disposition(disposition) => {
                disposition.deliveries.iter().map(|delivery| delivery.id).collect()
            }
            _ => Vec::new(),
        })
        .collect();
    assert_eq!(settled, ids);
}

#[test]
fn a_drained_sender_returns_unused_credit() {
    let mut pair = ConnectionPair::new();
    let (ours, theirs) = pair.receiver();
    pair.client.set_credit(ours, 10).unwrap();
    pair.run();
    pair.take_server_events();
    pair.client.drain(ours).unwrap();
    pair.run();
    assert_eq!(pair.take_server_events(), [ConnectionEvent::Credit { link: theirs, credit: 10, drain: true }]);
    pair.server.transfer(theirs, OutgoingDelivery { tag: b"t", ..OutgoingDelivery::default() }, &[b"last"]).unwrap();
    pair.server.drained(theirs).unwrap();
    let answer = pair.server.take_output();
    let frames = frames_of(answer.clone());
    let Performative::Flow(flow) = &frames[1].1 else { panic!("{frames:?}") };
    assert_eq!((flow.delivery_count, flow.link_credit, flow.drain), (Some(10), Some(0), true));
    pair.to_client.extend_from_slice(&answer);
    pair.run();
    let events = pair.take_client_events();
    assert!(matches!(&events[..], [ConnectionEvent::Delivery(_), ConnectionEvent::Drained { link }] if *link == ours));
    // Credit works as before afterwards.
    pair.client.set_credit(ours, 2).unwrap();
    pair.run();
    assert_eq!(pair.take_server_events(), [ConnectionEvent::Credit { link: theirs, credit: 2, drain: false }]);
}

#[test]
fn a_drain_without_credit_is_answered_once_by_the_owner() {
    let mut raw = RawFramePeer::begun(Config::default());
    raw.frame(0, &Performative::Attach(Box::new(Attach::receiver("r", Source::at("q"), Target::at("me")))));
    let (link, request) = requested(&raw.events()).unwrap();
    raw.server.accept_attach(link, request.reply()).unwrap();
    raw.frames();
    let flow = Flow {
        handle: Some(0),
        delivery_count: Some(0),
        link_credit: Some(0),
        drain: true,
        next_incoming_id: Some(0),
        incoming_window: 9,
        ..Flow::default()
    };
    raw.frame(0, &Performative::Flow(flow));
    assert_eq!(raw.events(), [ConnectionEvent::Credit { link, credit: 0, drain: true }]);
    assert!(raw.performatives().is_empty(), "the owner answers");
    raw.server.drained(link).unwrap();
    let answers = raw.performatives();
    assert!(matches!(&answers[..], [Performative::Flow(Flow { drain: true, link_credit: Some(0), .. })]));
    // The peer grants credit again. A second reply must not take it away.
    let grant = Flow {
        handle: Some(0),
        delivery_count: Some(0),
        link_credit: Some(3),
        next_incoming_id: Some(0),
        incoming_window: 9,
        ..Flow::default()
    };
    raw.frame(0, &Performative::Flow(grant));
    raw.server.drained(link).unwrap();
    assert!(raw.performatives().is_empty());
    assert_eq!(raw.server.credit(link), 3);
}

#[test]
fn the_reply_to_a_drain_does_not_overtake_transfers() {
    let small = Config { incoming_window: 4, ..Config::default() };
    let mut pair = ConnectionPair::with(small, Config::default());
    let (ours, theirs) = pair.receiver();
    pair.client.set_credit(ours, 20).unwrap();
    pair.run();
    pair.client.drain(ours).unwrap();
    pair.run();
    pair.take_server_events();
    for _ in 0..10 {
        let outgoing = OutgoingDelivery { tag: b"t", settled: true, ..OutgoingDelivery::default() };
        pair.server.transfer(theirs, outgoing, &[b"x"]).unwrap();
    }
    pair.server.drained(theirs).unwrap();
    pair.run();
    let events = pair.take_client_events();
    assert_eq!(payloads(&events).len(), 10);
    assert_eq!(events.last(), Some(&ConnectionEvent::Drained { link: ours }));
    assert_eq!((pair.client.credit(ours), pair.server.credit(theirs)), (0, 0));
}

#[test]
fn a_settled_delivery_may_use_withdrawn_credit() {
    let mut pair = ConnectionPair::new();
    let (ours, theirs) = pair.receiver();
    pair.client.set_credit(ours, 2).unwrap();
    pair.run();
    pair.client.set_credit(ours, 0).unwrap();
    pair.run();
    let unsettled = OutgoingDelivery { tag: b"t", ..OutgoingDelivery::default() };
    assert_eq!(pair.server.transfer(theirs, unsettled, &[b"x"]), Err(CommandError::NoCredit));
    let settled = OutgoingDelivery { settled: true, ..unsettled };
    for _ in 0..2 {
        pair.server.transfer(theirs, settled, &[b"in flight"]).unwrap();
    }
    assert_eq!(pair.server.transfer(theirs, settled, &[b"x"]), Err(CommandError::NoCredit), "never granted");
    pair.run();
    assert_eq!(payloads(&pair.take_client_events()).len(), 2);
    pair.client.set_credit(ours, 1).unwrap();
    pair.run();
    assert_eq!((pair.server.credit(theirs), pair.client.credit(ours)), (1, 1));
}

#[test]
fn an_echo_gets_a_reply_for_link_and_session() {
    let mut raw = receiving(Config::default());
    for handle in [None, Some(0)] {
        let flow = Flow {
            handle,
            next_incoming_id: Some(0),
            incoming_window: 9,
            next_outgoing_id: 3,
            echo: true,
            ..Flow::default()
        };
        raw.frame(0, &Performative::Flow(flow));
        let answers = raw.performatives();
        let [Performative::Flow(answer)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((answer.handle, answer.next_incoming_id, answer.echo), (handle, Some(3), false));
    }
}

#[test]
fn kept_credit_bounds_unsettled_deliveries() {
    let mut pair = ConnectionPair::new();
    let (ours, theirs) = pair.sender();
    pair.server.keep_credit(theirs, 10).unwrap();
    pair.run();
    let mut sent = 0;
    while pair.client.credit(ours) > 0 && sent < 100 {
        send(&mut pair, ours, b"x");
        sent += 1;
        pair.run();
    }
    assert_eq!(sent, 10, "unsettled deliveries hold the credit back");
    let last = payloads(&pair.take_server_events()).len() as u32 - 1;
    pair.server.dispose(theirs, 0, last, true, Some(DeliveryState::Accepted)).unwrap();
    pair.run();
    assert_eq!(pair.client.credit(ours), 10);
}

#[test]
fn deliveries_sent_before_credit_was_lowered_are_accepted() {
    let mut pair = ConnectionPair::new();
    let (ours, theirs) = pair.sender();
    pair.server.set_credit(theirs, 5).unwrap();
    pair.run();
    (0..5).for_each(|_| {
        send(&mut pair, ours, b"x");
    });
    pair.server.set_credit(theirs, 0).unwrap();
    pair.take_server_events();
    pair.run();
    assert_eq!(payloads(&pair.take_server_events()).len(), 5);
}

/// A server with a link on handle 0 on which it receives, with ten credits given.
pub(crate) fn receiving(config: Config) -> RawFramePeer {
    let mut raw = RawFramePeer::begun(config);
    raw.frame(0, &Performative::Attach(Box::new(Attach::sender("s", Source::at("me"), Target::at("q")))));
    let (link, request) = requested(&raw.events()).unwrap();
    raw.server.accept_attach(link, request.reply()).unwrap();
    raw.server.set_credit(link, 10).unwrap();
    raw.frames();
    raw
}

pub(crate) fn transfer(id: u32, more: bool) -> Transfer {
    Transfer { delivery_id: Some(id), delivery_tag: Some(Bytes::from_static(b"t")), more, ..Transfer::default() }
}

#[test]
fn a_delivery_id_may_repeat_while_unsettled() {
    let mut raw = receiving(Config::default());
    for payload in [b"one", b"two"] {
        raw.frame_with(0, &Performative::Transfer(transfer(7, false)), payload);
    }
    let events = raw.events();
    assert_eq!(payloads(&events), [&b"one"[..], b"two"]);
    assert!(raw.performatives().is_empty(), "the AMQP session goes on");
    let ConnectionEvent::Delivery(delivery) = &events[0] else { panic!("{events:?}") };
    for _ in 0..2 {
        raw.server.dispose(delivery.link, 7, 7, true, Some(DeliveryState::Accepted)).unwrap();
    }
    assert!(!raw.performatives().is_empty(), "it is settled");
}

#[test]
fn an_aborted_delivery_is_dropped_and_the_next_one_arrives() {
    let mut raw = receiving(Config::default());
    raw.frame_with(0, &Performative::Transfer(transfer(0, true)), b"half");
    raw.frame_with(0, &Performative::Transfer(Transfer { aborted: true, ..Transfer::default() }), b"junk");
    raw.frame_with(0, &Performative::Transfer(transfer(1, false)), b"whole");
    assert_eq!(payloads(&raw.events()), [&b"whole"[..]]);
}

#[test]
fn a_continuation_needs_neither_id_nor_tag_and_may_settle() {
    let mut raw = receiving(Config::default());
    raw.frame_with(0, &Performative::Transfer(transfer(0, true)), b"one ");
    raw.frame_with(0, &Performative::Transfer(Transfer { more: true, ..Transfer::default() }), b"two ");
    raw.frame_with(0, &Performative::Transfer(Transfer { settled: Some(true), ..Transfer::default() }), b"three");
    let events = raw.events();
    let [ConnectionEvent::Delivery(delivery)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&delivery.payload[..], delivery.settled), (&b"one two three"[..], true));
}

#[test]
fn a_message_over_the_limit_is_rejected_on_an_open_link() {
    let mut raw = receiving(Config { max_message_size: 100, ..Config::default() });
    raw.frame_with(0, &Performative::Transfer(transfer(0, false)), &[0; 101]);
    raw.frame_with(0, &Performative::Transfer(transfer(1, true)), &[0; 60]);
    raw.frame_with(0, &Performative::Transfer(Transfer::default()), &[0; 60]);
    raw.frame_with(0, &Performative::Transfer(transfer(2, false)), &[0; 100]);
    assert_eq!(payloads(&raw.events()).len(), 1);
    let answers = raw.performatives();
    let [Performative::Disposition(rejected)] = &answers[..] else { panic!("{answers:?}") };
    let Some(DeliveryState::Rejected(Some(error))) = &rejected.state else { panic!("{rejected:?}") };
    assert_eq!(error.condition, condition::MESSAGE_SIZE_EXCEEDED);
    assert_eq!((rejected.first, rejected.last, rejected.settled), (0, Some(1), true));
}

#[test]
fn a_settled_message_over_the_limit_detaches_the_link() {
    let mut raw = receiving(Config { max_message_size: 100, ..Config::default() });
    let settled = Transfer { settled: Some(true), ..transfer(0, false) };
    raw.frame_with(0, &Performative::Transfer(settled), &[0; 101]);
    let answers = raw.performatives();
    let [Performative::Detach(detach)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(detach.error.as_ref().unwrap().condition, condition::MESSAGE_SIZE_EXCEEDED);
    assert!(matches!(&raw.events()[..], [ConnectionEvent::Detached { error: Some(_), .. }]));
}

#[test]
fn partly_received_messages_are_bounded_per_connection() {
    let mut raw = receiving(Config { max_incomplete_bytes: 1000, ..Config::default() });
    raw.frame_with(0, &Performative::Transfer(transfer(0, true)), &[0; 900]);
    raw.frame_with(0, &Performative::Transfer(Transfer { more: true, ..Transfer::default() }), &[0; 900]);
    raw.frame_with(0, &Performative::Transfer(Transfer::default()), &[0; 900]);
    assert_eq!(payloads(&raw.events()).len(), 0);
    let answers = raw.performatives();
    let [Performative::Disposition(rejected)] = &answers[..] else { panic!("{answers:?}") };
    let Some(DeliveryState::Rejected(Some(error))) = &rejected.state else { panic!("{rejected:?}") };
    assert_eq!(error.condition, condition::RESOURCE_LIMIT_EXCEEDED);
}

#[test]
fn queued_transfers_are_dropped_with_their_link_or_session() {
    for end_session in [false, true] {
        let mut pair = ConnectionPair::with(Config::default(), Config { incoming_window: 0, ..Config::default() });
        let session = pair.session();
        let (ours, theirs) = pair.link_in(session, Attach::sender("s", Source::at("me"), Target::at("orders")));
        pair.server.keep_credit(theirs, 500).unwrap();
        pair.run();
        for _ in 0..5 {
            send(&mut pair, ours, &Bytes::from_static(b"waits"));
        }
        assert_eq!(pair.client.backlog_len(), 25);
        if end_session {
            pair.client.end_session(session, None).unwrap();
        } else {
            pair.client.detach(ours, None).unwrap();
        }
        assert_eq!(pair.client.backlog_len(), 0);
    }
}

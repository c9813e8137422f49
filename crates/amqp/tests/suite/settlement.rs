//! Dispositions: ranges, echoes, tokens.

use amqp::performative::{Disposition, Modified, Performative};
use amqp::{
    Attach, Config, ConnectionEvent, DeliveryRef, DeliveryState, Error, LinkId, OutgoingDelivery, Role, Source, Target,
    condition,
};

use crate::fixture::{ConnectionPair, RawFramePeer, frames_of};
use crate::transfer::{receiving, transfer};

fn dispositions(events: Vec<ConnectionEvent>) -> Vec<(LinkId, Vec<DeliveryRef>, bool, Option<DeliveryState>)> {
    let spoken = events.into_iter().filter_map(|event| match event {
        ConnectionEvent::Disposition(d) => Some((d.link, d.deliveries, d.settled, d.state)),
        _ => None,
    });
    spoken.collect()
}

/// A link on which the server has sent `count` unsettled deliveries with tokens 100, 101, …
fn delivered(pair: &mut ConnectionPair, count: u32) -> (LinkId, LinkId) {
    let (ours, theirs) = pair.receiver();
    pair.client.set_credit(ours, count).unwrap();
    pair.run();
    for n in 0..count {
        let outgoing =
            OutgoingDelivery { tag: &n.to_be_bytes(), token: 100 + u64::from(n), ..OutgoingDelivery::default() };
        pair.server.transfer(theirs, outgoing, &[b"x"]).unwrap();
    }
    pair.run();
    pair.take_client_events();
    pair.take_server_events();
    (ours, theirs)
}

#[test]
fn a_range_is_settled_in_one_event_and_echoed_in_one_frame() {
    let mut pair = ConnectionPair::new();
    let (ours, theirs) = delivered(&mut pair, 1000);
    pair.client.dispose(ours, 0, 999, false, Some(DeliveryState::Accepted)).unwrap();
    pair.run();
    let spoken = dispositions(pair.take_server_events());
    let [(link, deliveries, false, Some(DeliveryState::Accepted))] = &spoken[..] else { panic!("{spoken:?}") };
    assert_eq!((*link, deliveries.len(), deliveries[7]), (theirs, 1000, DeliveryRef { id: 7, token: 107 }));
    for delivery in deliveries {
        pair.server.dispose(theirs, delivery.id, delivery.id, true, Some(DeliveryState::Accepted)).unwrap();
    }
    let echo = pair.server.take_output();
    let expected = Disposition {
        role: Role::Sender,
        first: 0,
        last: Some(999),
        settled: true,
        state: Some(DeliveryState::Accepted),
        batchable: false,
    };
    assert_eq!(frames_of(echo.clone()).len(), 1);
    assert_eq!(frames_of(echo.clone())[0].1, Performative::Disposition(expected));
    pair.to_client.extend_from_slice(&echo);
    pair.run();
    let heard = dispositions(pair.take_client_events());
    assert_eq!((heard.len(), heard[0].0, heard[0].1.len(), heard[0].2), (1, ours, 1000, true));
}

#[test]
fn every_outcome_is_echoed() {
    let outcomes = [
        DeliveryState::Accepted,
        DeliveryState::Released,
        DeliveryState::Rejected(None),
        DeliveryState::rejected(Error::new(condition::DEAD_LETTER, "why")),
        DeliveryState::Modified(Box::new(Modified { undeliverable_here: true, ..Modified::default() })),
    ];
    for outcome in outcomes {
        let mut pair = ConnectionPair::new();
        let (ours, theirs) = delivered(&mut pair, 1);
        pair.client.dispose(ours, 0, 0, false, Some(outcome.clone())).unwrap();
        pair.run();
        let spoken = dispositions(pair.take_server_events());
        assert_eq!(spoken[0].3, Some(outcome.clone()));
        pair.server.dispose(theirs, 0, 0, true, Some(outcome.clone())).unwrap();
        pair.run();
        assert_eq!(dispositions(pair.take_client_events())[0].3, Some(outcome));
    }
}

#[test]
fn a_settled_delivery_gets_no_disposition() {
    let mut pair = ConnectionPair::new();
    let (ours, _) = delivered(&mut pair, 3);
    pair.client.dispose(ours, 1, 1, true, Some(DeliveryState::Accepted)).unwrap();
    pair.client.dispose(ours, 0, 2, true, Some(DeliveryState::Released)).unwrap();
    pair.run();
    let spoken = dispositions(pair.take_server_events());
    assert_eq!(spoken[0].1, [DeliveryRef { id: 1, token: 101 }]);
    assert_eq!(spoken[1].1, [DeliveryRef { id: 0, token: 100 }, DeliveryRef { id: 2, token: 102 }]);
}

#[test]
fn a_disposition_over_two_links_becomes_two_events() {
    let mut pair = ConnectionPair::new();
    let session = pair.session();
    let links: Vec<_> =
        ["a", "b"].map(|name| pair.link_in(session, Attach::receiver(name, Source::at("q"), Target::at("me")))).into();
    for (ours, _) in &links {
        pair.client.set_credit(*ours, 10).unwrap();
    }
    pair.run();
    for n in 0..10usize {
        let outgoing = OutgoingDelivery { tag: b"t", token: n as u64, ..OutgoingDelivery::default() };
        pair.server.transfer(links[n % 2].1, outgoing, &[b"x"]).unwrap();
    }
    pair.run();
    pair.take_server_events();
    pair.client.dispose(links[0].0, 0, 9, true, Some(DeliveryState::Accepted)).unwrap();
    pair.run();
    let spoken = dispositions(pair.take_server_events());
    assert_eq!(spoken.len(), 2);
    for (index, (link, deliveries, ..)) in spoken.iter().enumerate() {
        assert_eq!(*link, links[index].1);
        assert_eq!(deliveries.iter().map(|delivery| delivery.token % 2).sum::<u64>(), index as u64 * 5);
    }
}

#[test]
fn deliveries_of_a_detached_link_are_dropped() {
    let mut pair = ConnectionPair::new();
    let (ours, _) = delivered(&mut pair, 3);
    pair.client.detach(ours, None).unwrap();
    pair.run();
    pair.take_server_events();
    let mut raw = receiving(Config::default());
    raw.frame_with(0, &Performative::Transfer(transfer(0, false)), b"x");
    let detach = amqp::performative::Detach { handle: 0, closed: true, error: None };
    raw.frame(0, &Performative::Detach(detach));
    raw.events();
    raw.frame(0, &disposition(0, 0));
    assert_eq!(raw.events(), []);
    assert!(!raw.server.is_closed());
}

#[test]
fn accepted_sends_of_pipelined_transfers_become_one_frame() {
    let mut raw = receiving(Config::default());
    for id in 0..10 {
        raw.frame_with(0, &Performative::Transfer(transfer(id, false)), b"x");
    }
    for event in raw.events() {
        let ConnectionEvent::Delivery(delivery) = event else { panic!("{event:?}") };
        raw.server.dispose(delivery.link, delivery.id, delivery.id, true, Some(DeliveryState::Accepted)).unwrap();
    }
    let answers = raw.performatives();
    assert!(matches!(&answers[..], [Performative::Disposition(Disposition { first: 0, last: Some(9), .. })]));
}

#[test]
fn a_rejected_delivery_among_accepted_ones_has_its_own_frame() {
    let mut raw = receiving(Config::default());
    for id in 0..3 {
        raw.frame_with(0, &Performative::Transfer(transfer(id, false)), b"x");
    }
    for event in raw.events() {
        let ConnectionEvent::Delivery(d) = event else { panic!("{event:?}") };
        let state = if d.id == 1 { DeliveryState::Rejected(None) } else { DeliveryState::Accepted };
        raw.server.dispose(d.link, d.id, d.id, true, Some(state)).unwrap();
    }
    let ids: Vec<_> = raw
        .performatives()
        .into_iter()
        .map(|answer| match answer {
            Performative::Disposition(d) => (d.first, d.state),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [DeliveryState::Accepted, DeliveryState::Rejected(None), DeliveryState::Accepted];
    assert_eq!(ids, expected.into_iter().enumerate().map(|(id, state)| (id as u32, Some(state))).collect::<Vec<_>>());
}

pub(crate) fn disposition(first: u32, last: u32) -> Performative {
    Performative::Disposition(Disposition {
        role: Role::Sender,
        first,
        last: Some(last),
        settled: true,
        state: None,
        batchable: false,
    })
}

#[test]
fn a_disposition_for_ids_never_seen_changes_nothing() {
    let mut raw: RawFramePeer = receiving(Config::default());
    raw.frame(0, &disposition(5, u32::MAX));
    raw.frame(0, &disposition(5, 100));
    assert_eq!(raw.events(), []);
    assert!(!raw.server.is_closed());
}

//! Headers, SASL, open, heartbeats, close.

use std::time::{Duration, Instant};

use amqp::frame::ProtocolHeader;
use amqp::performative::Performative;
use amqp::{ClientSasl, Config, Connection, ConnectionEvent, ServerSasl, condition};
use bytes::BytesMut;

use crate::fixture::{ConnectionPair, RawFramePeer, frames_of, open};

fn opened(events: &[ConnectionEvent]) -> bool {
    events.iter().any(|event| matches!(event, ConnectionEvent::Opened(_)))
}

#[test]
fn every_sasl_mechanism_leads_to_an_open_connection() {
    let plain = ClientSasl::Plain { user: "u".into(), password: "p".into() };
    for sasl in [ClientSasl::None, ClientSasl::Anonymous, ClientSasl::External, plain] {
        let mut pair = ConnectionPair::new();
        pair.client = Connection::client(Config::default(), sasl.clone(), pair.now);
        pair.run();
        assert!(opened(&pair.client_events) && opened(&pair.server_events), "{sasl:?}");
    }
}

#[test]
fn a_pipelined_handshake_gets_one_reply() {
    let mut pair = ConnectionPair::new();
    pair.client = Connection::pipelined_client(Config::default(), ClientSasl::Anonymous, pair.now);
    let session = pair.client.begin_session().unwrap();
    pair.step(usize::MAX, 0);
    pair.step(0, usize::MAX);
    assert!(opened(&pair.client_events));
    assert!(pair.client_events.contains(&ConnectionEvent::SessionBegun { session, by_peer: false }));
}

#[test]
fn an_unknown_header_gets_ours_and_a_close() {
    let mut raw = RawFramePeer::new(Config::default());
    raw.write(b"AMQP\x01\x00\x09\x01");
    assert_eq!(&raw.server.take_output()[..], ProtocolHeader::Sasl.bytes());
    assert!(raw.server.is_closed());
}

#[test]
fn a_mechanism_that_was_not_offered_is_refused() {
    let sasl = ServerSasl { mechanisms: vec!["EXTERNAL".into()], required: true, plain: None };
    let mut pair = ConnectionPair::new();
    pair.server = Connection::server(Config::default(), sasl, pair.now);
    pair.run();
    let Some(ConnectionEvent::Closed { error: Some(error), .. }) = pair.client_events.last() else {
        panic!("not closed")
    };
    assert_eq!(error.condition, condition::UNAUTHORIZED_ACCESS);
}

#[test]
fn a_client_without_sasl_is_refused_where_it_is_required() {
    let mut pair = ConnectionPair::new();
    pair.client = Connection::client(Config::default(), ClientSasl::None, pair.now);
    pair.server =
        Connection::server(Config::default(), ServerSasl { required: true, ..ServerSasl::default() }, pair.now);
    pair.run();
    assert!(pair.client.is_closed() && pair.server.is_closed());
}

#[test]
fn the_server_announces_half_of_its_idle_time_out() {
    let mut raw = RawFramePeer::new(Config { idle_time_out: Some(Duration::from_secs(60)), ..Config::default() });
    raw.write(&ProtocolHeader::Amqp.bytes());
    raw.frame(0, &open());
    let answers = raw.performatives();
    let Performative::Open(answer) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(answer.idle_time_out, Some(30_000));
}

#[test]
fn heartbeats_keep_an_idle_connection_open() {
    let mut pair = ConnectionPair::new();
    pair.run();
    for _ in 0..1000 {
        let next = pair.client.next_deadline().unwrap().min(pair.server.next_deadline().unwrap());
        let wait = next.saturating_duration_since(pair.now);
        assert!(wait > Duration::from_secs(1), "heartbeats are not a busy loop");
        pair.pass(wait);
    }
    assert!(!pair.client.is_closed() && !pair.server.is_closed());
}

#[test]
fn heartbeats_are_sent_within_half_of_the_idle_timeout() {
    let mut pair = ConnectionPair::with(
        Config { idle_time_out: Some(Duration::from_secs(20)), ..Config::default() },
        Config::default(),
    );
    pair.run();
    let announced = Duration::from_secs(10);
    let next = pair.server.next_deadline().unwrap();
    assert!(next - pair.now < announced / 2);
    pair.server.on_tick(next);
    assert_eq!(pair.server.take_output().len(), 8, "one empty frame");
}

#[test]
fn an_idle_peer_is_closed() {
    let mut pair = ConnectionPair::new();
    pair.run();
    let later = pair.now + Duration::from_secs(120);
    pair.server.on_tick(later - Duration::from_millis(1));
    assert!(!pair.server.is_closed());
    pair.server.on_tick(later);
    assert!(pair.server.is_closed());
    assert_eq!(pair.server.next_deadline(), None);
}

#[test]
fn a_peer_that_never_opens_is_closed() {
    let now = Instant::now();
    let mut server = Connection::server(Config::default(), ServerSasl::default(), now);
    let deadline = server.next_deadline().unwrap();
    assert_eq!(deadline, now + Duration::from_secs(30));
    server.feed(&mut BytesMut::from(&ProtocolHeader::Sasl.bytes()[..]), now + Duration::from_secs(29));
    server.on_tick(deadline);
    assert!(server.is_closed());
}

#[test]
fn a_close_gets_a_reply_and_reports_who_closed() {
    let mut pair = ConnectionPair::new();
    pair.run();
    pair.client.close(None).unwrap();
    pair.run();
    assert_eq!(pair.client_events.last(), Some(&ConnectionEvent::Closed { error: None, by_peer: false }));
    assert_eq!(pair.server_events.last(), Some(&ConnectionEvent::Closed { error: None, by_peer: true }));
}

#[test]
fn a_server_that_fails_early_sends_open_before_close() {
    let mut raw = RawFramePeer::new(Config::default());
    raw.write(&ProtocolHeader::Amqp.bytes());
    raw.write(&[0, 0, 0, 7, 2, 0, 0, 0]);
    let frames = frames_of(raw.server.take_output());
    assert!(matches!(frames[0].1, Performative::Open(_)));
    let Performative::Close(close) = &frames[1].1 else { panic!("{frames:?}") };
    assert_eq!(close.error.as_ref().unwrap().condition, condition::FRAMING_ERROR);
}

#[test]
fn credentials_do_not_show_in_debug_output() {
    let sasl = ClientSasl::Plain { user: "someone".into(), password: "secret".into() };
    let connection = Connection::client(Config::default(), sasl, Instant::now());
    assert!(!format!("{connection:?}").contains("secret"));
}

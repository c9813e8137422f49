//! Protocol violations: the peer gets the right error, and other clients are not affected.

use amqp::performative::{Detach, Disposition, Flow, Performative, Transfer};
use amqp::{Attach, DeliveryState, Role, Source, Target};
use bytes::{Bytes, BytesMut};

use crate::fixture::{BrokerFixture, Bystander};
use crate::raw_peer::{self, CloseError, RawPeer, attach, begin, credit, message, transfer};

/// The peer's state when it violates the protocol.
#[derive(Clone, Copy, Debug)]
enum At {
    Opened,
    Begun,
    Sending,
    Receiving,
    /// With a hundred credits for requests.
    Asking,
}

impl At {
    async fn reach(self, fixture: &BrokerFixture) -> RawPeer {
        match self {
            Self::Opened => RawPeer::opened(fixture.address).await,
            Self::Begun => RawPeer::begun(fixture.address).await,
            Self::Sending => RawPeer::sending(fixture.address, "plain").await,
            Self::Receiving => RawPeer::receiving(fixture.address, "plain").await,
            Self::Asking => RawPeer::sending(fixture.address, "$cbs").await,
        }
    }
}

fn framed(frames: &[(u16, Performative)]) -> Bytes {
    let mut buffer = BytesMut::new();
    for (channel, performative) in frames {
        raw_peer::write_performative(&mut buffer, *channel, performative, b"");
    }
    buffer.freeze()
}

fn one(performative: Performative) -> Bytes {
    framed(&[(0, performative)])
}

/// What a peer writes, in which state, and the error it must get.
fn mistakes() -> Vec<(&'static str, At, Bytes, (&'static str, &'static str))> {
    let raw = Bytes::from_static;
    let disposition = |first, last| {
        Performative::Disposition(Disposition {
            role: Role::Receiver,
            first,
            last: Some(last),
            settled: true,
            state: Some(DeliveryState::Accepted),
            batchable: false,
        })
    };
    let beyond_credit: Vec<_> = (0..300).map(|id| (0, transfer(0, id, false))).collect();
    let second_receiver = Attach { handle: 1, ..Attach::receiver("r2", Source::at("plain"), Target::at("me")) };
    let nobody = Attach::sender("s", Source::at("me"), Target::at("nobody"));
    vec![
        ("a frame of 4 GiB", At::Begun, raw(b"\xff\xff\xff\xff\x02\0\0\0"), ("close", "amqp:connection:framing-error")),
        (
            "a frame above the maximum",
            At::Begun,
            raw(b"\0\x01\0\x01\x02\0\0\0"),
            ("close", "amqp:connection:framing-error"),
        ),
        (
            "a frame shorter than its head",
            At::Begun,
            raw(b"\0\0\0\x03\x02\0\0\0"),
            ("close", "amqp:connection:framing-error"),
        ),
        (
            "a body that begins outside",
            At::Begun,
            raw(b"\0\0\0\x08\x09\0\0\0"),
            ("close", "amqp:connection:framing-error"),
        ),
        (
            "a frame of no known type",
            At::Begun,
            raw(b"\0\0\0\x08\x02\x07\0\0"),
            ("close", "amqp:connection:framing-error"),
        ),
        (
            "a performative nobody knows",
            At::Begun,
            raw(b"\0\0\0\x0c\x02\0\0\0\0\x53\x99\x45"),
            ("close", "amqp:decode-error"),
        ),
        (
            "a list longer than its frame",
            At::Begun,
            raw(b"\0\0\0\x0f\x02\0\0\0\0\x53\x12\xd0\xff\xff\xff"),
            ("close", "amqp:decode-error"),
        ),
        (
            "a transfer of the wrong types",
            At::Begun,
            raw(b"\0\0\0\x0f\x02\0\0\0\0\x53\x14\xc0\x02\x01\x40"),
            ("close", "amqp:decode-error"),
        ),
        (
            "a SASL frame too late",
            At::Begun,
            raw(b"\0\0\0\x0c\x02\x01\0\0\0\x53\x41\x45"),
            ("close", "amqp:connection:framing-error"),
        ),
        ("a transfer before begin", At::Opened, one(transfer(0, 0, false)), ("close", "amqp:not-allowed")),
        ("a second open", At::Begun, one(raw_peer::open()), ("close", "amqp:illegal-state")),
        ("a second begin", At::Begun, one(begin(9)), ("close", "amqp:illegal-state")),
        (
            "a channel above the maximum",
            At::Begun,
            framed(&[(5_000, begin(9))]),
            ("close", "amqp:connection:framing-error"),
        ),
        ("a transfer before attach", At::Begun, one(transfer(0, 0, false)), ("end", "amqp:session:unattached-handle")),
        ("a transfer on no handle", At::Sending, one(transfer(7, 0, false)), ("end", "amqp:session:unattached-handle")),
        ("a flow on no handle", At::Sending, one(credit(7, 1, 9)), ("end", "amqp:session:unattached-handle")),
        (
            "a detach of no handle",
            At::Sending,
            one(Performative::Detach(Detach { handle: 7, ..Detach::default() })),
            ("end", "amqp:session:unattached-handle"),
        ),
        (
            "a handle twice",
            At::Sending,
            one(attach(Attach::sender("t", Source::at("me"), Target::at("plain")))),
            ("end", "amqp:session:handle-in-use"),
        ),
        (
            "a transfer without tag",
            At::Sending,
            one(Performative::Transfer(Transfer::default())),
            ("end", "amqp:invalid-field"),
        ),
        ("a transfer to a receiver", At::Receiving, one(transfer(0, 0, false)), ("end", "amqp:not-allowed")),
        ("a range that runs backwards", At::Receiving, one(disposition(9, 3)), ("end", "amqp:invalid-field")),
        ("more than the credit", At::Asking, framed(&beyond_credit), ("detach", "amqp:link:transfer-limit-exceeded")),
        (
            "credit without a number",
            At::Receiving,
            one(Performative::Flow(Flow { handle: Some(0), incoming_window: 9, ..Flow::default() })),
            ("detach", "amqp:invalid-field"),
        ),
        ("an entity that is not there", At::Begun, one(attach(nobody)), ("detach", "amqp:not-found")),
        (
            "a link without an address",
            At::Begun,
            one(attach(Attach { source: None, ..Attach::receiver("r", Source::at(""), Target::at("me")) })),
            ("detach", "amqp:invalid-field"),
        ),
        (
            "a handle above the maximum",
            At::Begun,
            one(attach(Attach { handle: 256, ..second_receiver })),
            ("close", "amqp:connection:framing-error"),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_violation_gets_its_error_and_others_are_unaffected() {
    // GIVEN a broker and a working client
    let fixture = BrokerFixture::start().await;
    fixture.queue("plain", "").await;
    let bystander = Bystander::start(&fixture).await;
    let (before, _) = fixture.memory();
    // WHEN peers violate the protocol in every way, repeatedly
    for round in 0..10 {
        for (what, at, bytes, (frame, condition)) in mistakes() {
            let mut peer = at.reach(&fixture).await;
            peer.write(&bytes).await;
            // THEN each gets its error
            let close_error = peer.close_error().await;
            let expected: CloseError = Some((frame, condition.to_owned()));
            assert_eq!(close_error, expected, "{what} (round {round})");
            if frame == "close" {
                peer.wait_closed().await;
            }
        }
    }
    // AND nothing leaks
    bystander.assert_served(&fixture, "260 mistakes").await;
    let (after, _) = fixture.memory();
    assert!(after < before + 48, "{before} MiB before, {after} after");
}

#[tokio::test]
async fn harmless_frames_are_accepted() {
    let fixture = BrokerFixture::start().await;
    fixture.queue("plain", "").await;
    let mut peer = RawPeer::sending(fixture.address, "plain").await;
    // Dispositions for unknown deliveries, an empty frame, a flow without effect.
    let unknown = Disposition {
        role: Role::Receiver,
        first: 5,
        last: Some(5_000_000),
        settled: true,
        state: Some(DeliveryState::Accepted),
        batchable: false,
    };
    peer.frame(0, &Performative::Disposition(unknown)).await;
    peer.write(b"\0\0\0\x08\x02\0\0\0").await;
    peer.frame(0, &Performative::Flow(Flow { next_incoming_id: Some(0), incoming_window: 9, ..Flow::default() })).await;
    // The link still works; only the invalid message is rejected.
    peer.frame_with(0, &transfer(0, 0, false), b"\x00\x53\x75\xb0\xff\xff\xff\xff").await;
    peer.frame_with(0, &transfer(0, 1, false), &message(10)).await;
    let states = [settled(&mut peer).await, settled(&mut peer).await];
    let [DeliveryState::Rejected(Some(error)), DeliveryState::Accepted] = &states else { panic!("{states:?}") };
    assert_eq!(error.condition.as_str(), "amqp:decode-error");
}

async fn settled(peer: &mut RawPeer) -> DeliveryState {
    let frame = peer.until(|frame| matches!(frame, Performative::Disposition(_))).await;
    let Performative::Disposition(Disposition { state: Some(state), .. }) = frame else { panic!("{frame:?}") };
    state
}

#[tokio::test]
async fn administration_bears_huge_and_malformed_requests() {
    let fixture = BrokerFixture::start().await;
    let bystander = Bystander::start(&fixture).await;
    let (before, _) = fixture.memory();
    let laughs: String =
        (1..10).map(|level| format!("<!ENTITY l{level} \"{}\">", format!("&l{};", level - 1).repeat(10))).collect();
    let expansion =
        format!("<?xml version=\"1.0\"?><!DOCTYPE entry [<!ENTITY l0 \"lol\">{laughs}]><entry>&l9;</entry>");
    let deep = "<a>".repeat(80_000);
    let headers: String = (0..100).map(|number| format!("x-{number}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(70_000));
    let requests: [(&str, &str, &[u8], u16); 8] = [
        ("/q?api-version=2021-05", "", b"<entry><content>", 400),
        ("/q?api-version=2021-05", "", b"\xff\xfe\x00", 400),
        ("/q?api-version=2021-05", "", expansion.as_bytes(), 400),
        ("/q?api-version=2021-05", "", deep.as_bytes(), 400),
        ("/q?api-version=2021-05", "", &vec![b'<'; 1 << 20], 413),
        ("/q?api-version=1066-10", "", b"", 400),
        ("/q", &headers, b"", 431),
        ("/q", &long, b"", 431),
    ];
    for round in 0..5 {
        for (path, headers, body, status) in requests {
            let answer = fixture.http("PUT", path, headers, body).await;
            let start: String = answer.chars().take(200).collect();
            assert!(start.starts_with(&format!("HTTP/1.1 {status}")), "{status} for {path} in round {round}: {start}");
        }
    }
    bystander.assert_served(&fixture, "bad administration").await;
    let (after, peak) = fixture.memory();
    assert!(peak < before + 48, "{before} MiB before, {after} after, {peak} at most");
}

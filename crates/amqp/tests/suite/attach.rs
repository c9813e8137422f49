//! Attach and detach: accepted, delayed, refused, withdrawn, forced.

use amqp::codec::RawValue as Encoded;
use amqp::performative::{Detach, Performative};
use amqp::{Attach, Config, ConnectionEvent, Error, Map, Role, Source, Symbol, Target, Value, condition};

use crate::fixture::{ConnectionPair, RawFramePeer, requested};

#[test]
fn source_and_filters_are_echoed_byte_for_byte() {
    let described = Encoded::from_value(&Value::described(0x0013_7000_000c, "session".into()));
    let plain = Encoded::string("session");
    for value in [described, plain, Encoded::from_value(&Value::Null)] {
        let source = Source::at("amqps://host/entity").with_filter("com.microsoft:session-filter", value.clone());
        let mut pair = ConnectionPair::new();
        let session = pair.session();
        pair.client.attach(session, Attach::receiver("r", source, Target::at("me"))).unwrap();
        pair.run();
        let (link, request) = requested(&pair.take_server_events()).unwrap();
        pair.server.accept_attach(link, request.reply()).unwrap();
        pair.run();
        let events = pair.take_client_events();
        let [ConnectionEvent::Attached { attach, .. }] = &events[..] else { panic!("{events:?}") };
        let source = attach.source.as_ref().unwrap();
        assert_eq!(source.address(), Some("amqps://host/entity"));
        assert_eq!(source.filter.as_ref().unwrap().get("com.microsoft:session-filter"), Some(&value));
    }
}

#[test]
fn an_attach_may_wait_while_other_links_work() {
    let mut pair = ConnectionPair::new();
    let session = pair.session();
    let waiting = pair.client.attach(session, Attach::receiver("w", Source::at("q"), Target::at("me"))).unwrap();
    pair.client.set_credit(waiting, 5).unwrap();
    pair.run();
    let (held, request) = requested(&pair.take_server_events()).unwrap();
    // An attach of the other direction with the same name is another link.
    let (_, other) = pair.link_in(session, Attach::sender("w", Source::at("me"), Target::at("q")));
    pair.server.set_credit(other, 1).unwrap();
    pair.run();
    assert!(pair.take_client_events().iter().any(|event| matches!(event, ConnectionEvent::Credit { credit: 1, .. })));
    // Credit that arrived before the reply is reported with it.
    let mut reply = request.reply();
    reply.properties = Some(Map::new().with(Symbol::from("com.microsoft:locked-until-utc"), 5i64));
    pair.server.accept_attach(held, reply).unwrap();
    assert_eq!(pair.server.poll_event(), Some(ConnectionEvent::Credit { link: held, credit: 5, drain: false }));
    pair.run();
    let events = pair.take_client_events();
    assert!(
        matches!(&events[..], [ConnectionEvent::Attached { link, attach }] if *link == waiting && attach.properties.is_some())
    );
}

#[test]
fn a_refusal_is_an_attach_without_terminus_and_one_detach() {
    for (attach, our_role) in [
        (Attach::receiver("r", Source::at("q"), Target::at("me")), Role::Sender),
        (Attach::sender("s", Source::at("me"), Target::at("q")), Role::Receiver),
    ] {
        let mut raw = RawFramePeer::begun(Config::default());
        raw.frame(0, &Performative::Attach(Box::new(attach)));
        let (link, _) = requested(&raw.events()).unwrap();
        raw.server.refuse_attach(link, Error::new(condition::NOT_FOUND, "no")).unwrap();
        let answers = raw.performatives();
        let [Performative::Attach(refusal), Performative::Detach(detach)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(refusal.role, our_role);
        assert_eq!(refusal.source.is_none(), our_role == Role::Sender);
        assert_eq!(refusal.target.is_none(), our_role == Role::Receiver);
        assert!(detach.closed && detach.error.as_ref().unwrap().condition == condition::NOT_FOUND);
        raw.frame(0, &Performative::Detach(Detach { handle: 0, closed: true, error: None }));
        assert_eq!(raw.performatives(), []);
        assert_eq!(raw.events(), []);
    }
}

#[test]
fn a_refused_attach_is_reported_as_detached() {
    let mut pair = ConnectionPair::new();
    let session = pair.session();
    let link = pair.client.attach(session, Attach::receiver("r", Source::at("q"), Target::at("me"))).unwrap();
    pair.run();
    let (theirs, _) = requested(&pair.take_server_events()).unwrap();
    pair.server.refuse_attach(theirs, Error::new(condition::TIMEOUT, "none free")).unwrap();
    pair.run();
    let events = pair.take_client_events();
    let [ConnectionEvent::Detached { link: ended, closed: true, error: Some(error) }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((*ended, &error.condition), (link, &condition::TIMEOUT));
    assert_eq!(pair.take_server_events(), []);
}

#[test]
fn a_withdrawn_attach_gets_attach_and_detach() {
    let mut raw = RawFramePeer::begun(Config::default());
    raw.frame(0, &Performative::Attach(Box::new(Attach::receiver("r", Source::at("q"), Target::at("me")))));
    let (link, request) = requested(&raw.events()).unwrap();
    raw.frame(0, &Performative::Detach(Detach { handle: 0, closed: true, error: None }));
    let answers = raw.performatives();
    assert!(matches!(&answers[..], [Performative::Attach(_), Performative::Detach(Detach { closed: true, .. })]));
    assert_eq!(raw.events(), [ConnectionEvent::Detached { link, closed: true, error: None }]);
    assert!(raw.server.accept_attach(link, request.reply()).is_err(), "too late");
    // The handle is free again.
    raw.frame(0, &Performative::Attach(Box::new(Attach::receiver("r", Source::at("q"), Target::at("me")))));
    assert!(requested(&raw.events()).is_some());
}

#[test]
fn a_detach_reply_has_the_same_closed_flag() {
    for closed in [true, false] {
        let mut raw = RawFramePeer::begun(Config::default());
        raw.frame(0, &Performative::Attach(Box::new(Attach::receiver("r", Source::at("q"), Target::at("me")))));
        let (link, request) = requested(&raw.events()).unwrap();
        raw.server.accept_attach(link, request.reply()).unwrap();
        raw.frames();
        raw.frame(0, &Performative::Detach(Detach { handle: 0, closed, error: None }));
        assert_eq!(raw.performatives(), [Performative::Detach(Detach { handle: 0, closed, error: None })]);
        assert_eq!(raw.events(), [ConnectionEvent::Detached { link, closed, error: None }]);
    }
}

#[test]
fn a_forced_detach_carries_its_error_to_both_sides() {
    let mut pair = ConnectionPair::new();
    let (ours, theirs) = pair.receiver();
    pair.server.detach(theirs, Some(Error::new(condition::DETACH_FORCED, "idle"))).unwrap();
    pair.run();
    let events = pair.take_client_events();
    let [ConnectionEvent::Detached { link, error: Some(error), .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*link, &error.condition), (ours, &condition::DETACH_FORCED));
    assert_eq!(pair.take_server_events(), [ConnectionEvent::Detached { link: theirs, closed: true, error: None }]);
    assert!(pair.client.set_credit(ours, 1).is_err());
}

#[test]
fn detaches_that_cross_end_the_link_once_on_each_side() {
    let mut pair = ConnectionPair::new();
    let (ours, theirs) = pair.receiver();
    pair.client.detach(ours, None).unwrap();
    pair.server.detach(theirs, None).unwrap();
    pair.run();
    assert_eq!(pair.take_client_events(), [ConnectionEvent::Detached { link: ours, closed: true, error: None }]);
    assert_eq!(pair.take_server_events(), [ConnectionEvent::Detached { link: theirs, closed: true, error: None }]);
}

#[test]
fn an_attach_withdrawn_before_its_answer_ends_cleanly() {
    let mut pair = ConnectionPair::new();
    let session = pair.session();
    let link = pair.client.attach(session, Attach::receiver("r", Source::at("q"), Target::at("me"))).unwrap();
    pair.client.detach(link, None).unwrap();
    pair.run();
    assert_eq!(pair.take_client_events(), [ConnectionEvent::Detached { link, closed: true, error: None }]);
    // The same name and handle work again at once.
    pair.take_server_events();
    pair.link_in(session, Attach::receiver("r", Source::at("q"), Target::at("me")));
}

#[test]
fn the_end_of_an_amqp_session_is_the_end_of_its_links() {
    let mut pair = ConnectionPair::new();
    let session = pair.session();
    let (ours, theirs) = pair.link_in(session, Attach::receiver("r", Source::at("q"), Target::at("me")));
    pair.client.end_session(session, None).unwrap();
    pair.run();
    let client = pair.take_client_events();
    assert!(client.contains(&ConnectionEvent::Detached { link: ours, closed: true, error: None }));
    assert!(client.contains(&ConnectionEvent::SessionEnded { session, error: None }));
    let server = pair.take_server_events();
    assert!(server.contains(&ConnectionEvent::Detached { link: theirs, closed: true, error: None }));
    assert!(server.iter().any(|event| matches!(event, ConnectionEvent::SessionEnded { error: None, .. })));
    // Channel and handle are used again.
    pair.receiver();
}

#[test]
fn many_sessions_and_links_work_concurrently() {
    let mut pair = ConnectionPair::new();
    let mut links = Vec::new();
    for _ in 0..20 {
        let session = pair.session();
        for name in 0..20 {
            let attach = Attach::sender(name.to_string(), Source::at("me"), Target::at("q"));
            links.push(pair.link_in(session, attach));
        }
    }
    for (ours, theirs) in links {
        pair.server.set_credit(theirs, 7).unwrap();
        pair.run();
        assert_eq!(pair.client.credit(ours), 7);
    }
}

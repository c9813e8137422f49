//! Random conversations with random chunk boundaries: every delivery arrives once, in order, and is settled once.

use amqp::{
    Attach, ClientSasl, Config, Connection, ConnectionEvent, DeliveryState, LinkId, OutgoingDelivery, Source, Target,
};
use bytes::Bytes;
use proptest::prelude::*;

use crate::fixture::{ConnectionPair, requested};

#[derive(Debug, Clone)]
struct ConversationPlan {
    payloads: Vec<Vec<u8>>,
    chunks: Vec<(usize, usize)>,
    credit: u32,
    client: Config,
    server: Config,
    pipelined: bool,
    presettled: bool,
}

fn plan() -> impl Strategy<Value = ConversationPlan> {
    let payload = prop::collection::vec(any::<u8>(), 0..2500);
    let chunk = (prop_oneof![0usize..40, 0usize..5000], prop_oneof![0usize..40, 0usize..5000]);
    (
        prop::collection::vec(payload, 1..25),
        prop::collection::vec(chunk, 1..30),
        1u32..12,
        (config(), config()),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(payloads, chunks, credit, (client, server), pipelined, presettled)| ConversationPlan {
            payloads,
            chunks,
            credit,
            client,
            server,
            pipelined,
            presettled,
        })
}

fn config() -> impl Strategy<Value = Config> {
    (512u32..2000, 1u32..9, any::<u32>()).prop_map(|(max_frame_size, incoming_window, first_outgoing_id)| Config {
        max_frame_size,
        incoming_window,
        first_outgoing_id,
        ..Config::default()
    })
}

/// The deliveries of one side, and their outcomes.
#[derive(Default)]
struct SenderProgress {
    link: Option<LinkId>,
    next: usize,
    settled: Vec<u64>,
}

impl SenderProgress {
    fn send_what_credit_allows(&mut self, connection: &mut Connection, plan: &ConversationPlan) {
        let Some(link) = self.link else { return };
        while self.next < plan.payloads.len() && connection.credit(link) > 0 {
            let outgoing = OutgoingDelivery {
                tag: b"t",
                token: self.next as u64,
                settled: plan.presettled,
                ..OutgoingDelivery::default()
            };
            let (head, tail) = plan.payloads[self.next].split_at(plan.payloads[self.next].len() / 3);
            connection.transfer(link, outgoing, &[head, tail]).unwrap();
            self.next += 1;
        }
    }
}

fn receive(connection: &mut Connection, event: &ConnectionEvent, received: &mut Vec<Bytes>) {
    if let ConnectionEvent::Delivery(delivery) = event {
        received.push(delivery.payload.clone());
        if !delivery.settled {
            connection.dispose(delivery.link, delivery.id, delivery.id, true, Some(DeliveryState::Accepted)).unwrap();
        }
    }
}

fn note(event: &ConnectionEvent, sending: &mut SenderProgress) {
    if let ConnectionEvent::Disposition(disposition) = event {
        assert_eq!(disposition.state, Some(DeliveryState::Accepted));
        sending.settled.extend(disposition.deliveries.iter().map(|delivery| delivery.token));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn all_deliveries_arrive_in_order_both_ways(plan in plan()) {
        let mut pair = ConnectionPair::with(plan.client.clone(), plan.server.clone());
        if plan.pipelined {
            pair.client = Connection::pipelined_client(plan.client.clone(), ClientSasl::Anonymous, pair.now);
        }
        let session = pair.client.begin_session().unwrap();
        let out = pair.client.attach(session, Attach::sender("out", Source::at("me"), Target::at("q"))).unwrap();
        let back = pair.client.attach(session, Attach::receiver("back", Source::at("q"), Target::at("me"))).unwrap();
        pair.client.keep_credit(back, plan.credit).unwrap();
        let mut from_client = SenderProgress { link: Some(out), ..SenderProgress::default() };
        let mut from_server = SenderProgress::default();
        let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
        let mut chunks = plan.chunks.iter().cycle();
        let expected = plan.payloads.len();
        let settlements = if plan.presettled { 0 } else { expected };
        for round in 0.. {
            prop_assert!(round < 200_000, "stuck at {} and {} of {expected}", at_server.len(), at_client.len());
            let &(to_server, to_client) = chunks.next().unwrap();
            pair.step(to_server + 1, to_client + 1);
            for event in pair.take_server_events() {
                if let Some((link, request)) = requested(std::slice::from_ref(&event)) {
                    pair.server.accept_attach(link, request.reply()).unwrap();
                    match request.role {
                        amqp::Role::Sender => pair.server.keep_credit(link, plan.credit).unwrap(),
                        amqp::Role::Receiver => from_server.link = Some(link),
                    }
                }
                prop_assert!(!matches!(event, ConnectionEvent::Closed { .. } | ConnectionEvent::Detached { .. }), "{:?}", event);
                receive(&mut pair.server, &event, &mut at_server);
                note(&event, &mut from_server);
            }
            for event in pair.take_client_events() {
                prop_assert!(!matches!(event, ConnectionEvent::Closed { .. } | ConnectionEvent::Detached { .. }), "{:?}", event);
                receive(&mut pair.client, &event, &mut at_client);
                note(&event, &mut from_client);
            }
            from_client.send_what_credit_allows(&mut pair.client, &plan);
            from_server.send_what_credit_allows(&mut pair.server, &plan);
            if at_server.len() == expected
                && at_client.len() == expected
                && from_client.settled.len() == settlements
                && from_server.settled.len() == settlements
            {
                break;
            }
        }
        let sent: Vec<Bytes> = plan.payloads.iter().cloned().map(Bytes::from).collect();
        prop_assert_eq!(&at_server, &sent);
        prop_assert_eq!(&at_client, &sent);
        let tokens: Vec<u64> = (0..settlements as u64).collect();
        prop_assert_eq!(&from_client.settled, &tokens);
        prop_assert_eq!(&from_server.settled, &tokens);
    }
}

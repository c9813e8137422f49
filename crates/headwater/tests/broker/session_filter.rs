//! The session filter of an attach.

use amqp::codec::RawValue;
use amqp::performative::Performative;
use amqp::{Attach, Source, Target, Value};
use broker::core::{EntityDefinition, QueueDescription};
use broker::{Broker, StorageLocation};

use crate::raw_peer::{RawPeer, attach};

#[tokio::test]
async fn a_session_filter_that_is_not_a_string_is_refused() {
    let mut config = broker::Config::new("127.0.0.1:0".parse().expect("an address"), StorageLocation::Ephemeral);
    let mut queue = QueueDescription::default();
    queue.egress.requires_session = true;
    config.entities = vec![("q".into(), EntityDefinition::Queue(queue))];
    let broker = Broker::start(config).await.expect("a broker");
    for value in [Value::Int(7), Value::Boolean(true), Value::List(vec![])] {
        let mut peer = RawPeer::begun(broker.address()).await;
        let Source { mut filter, .. } = Source::at("q");
        filter.get_or_insert_default().set("com.microsoft:session-filter", RawValue::from_value(&value));
        let source = Source { filter, ..Source::at("q") };
        peer.frame(0, &attach(Attach::receiver("r", source, Target::at("me")))).await;
        // Not a wait for any session: the refusal comes at once.
        let frame = peer.until(|frame| matches!(frame, Performative::Detach(_))).await;
        let Performative::Detach(detach) = frame else { unreachable!("just matched") };
        let error = detach.error.expect("a refusal has an error");
        assert_eq!(error.condition.as_str(), "amqp:invalid-field", "{value:?}");
    }
    broker.stop().await;
}

//! Deliveries from clients: messages for an entity, or requests to a node.

use amqp::{Delivery, DeliveryState};
use tokio::io::{AsyncRead, AsyncWrite};

use super::links::BrokerLink;
use super::{BrokerConnection, decode, to_amqp};
use crate::core::Error;
use crate::engine::EngineRequest;

impl<S: AsyncRead + AsyncWrite + Unpin> BrokerConnection<S> {
    pub(super) fn on_delivery(&mut self, delivery: Delivery) {
        match self.links.get(delivery.link) {
            Some(BrokerLink::Sender { entity, .. }) => {
                let Delivery { link, id, settled, message_format, payload, .. } = delivery;
                let (to, size) = (*entity, payload.len());
                match decode::decode_messages(message_format, payload) {
                    Ok(messages) => {
                        self.pending_bytes += size;
                        self.pending.push(EngineRequest::Send { link, delivery: id, settled, to, messages });
                    }
                    Err(unreadable) => self.dispose(link, id, DeliveryState::rejected(unreadable.to_amqp())),
                }
            }
            Some(BrokerLink::Requests { session, node, .. }) => {
                let (session, node) = (*session, node.clone());
                if !delivery.settled {
                    self.dispose(delivery.link, delivery.id, DeliveryState::Accepted);
                }
                self.on_request(session, &node, delivery.payload);
            }
            // The link is being detached; its deliveries are dropped.
            _ => {}
        }
    }

    /// The message is on disk, or was refused.
    pub(super) fn on_sent(&mut self, link: amqp::LinkId, delivery: u32, result: Result<(), Error>) {
        let state = match result {
            Ok(()) => DeliveryState::Accepted,
            Err(error) => DeliveryState::rejected(to_amqp(&error)),
        };
        self.dispose(link, delivery, state);
    }

    fn dispose(&mut self, link: amqp::LinkId, delivery: u32, state: DeliveryState) {
        // Fails only if the link is closed; then nobody waits for the outcome.
        let _ = self.amqp.dispose(link, delivery, delivery, true, Some(state));
    }
}

//! A client's deliveries: messages for an entity, or requests to a node.

use amqp::{Delivery, DeliveryState};
use tokio::io::{AsyncRead, AsyncWrite};

use super::links::Link;
use super::{Connection, incoming, to_amqp};
use crate::core::Error;
use crate::engine::EngineRequest;

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn on_delivery(&mut self, delivery: Delivery) {
        match self.links.get(delivery.link) {
            Some(Link::Sender { entity, .. }) => {
                let Delivery { link, id, settled, message_format, payload, .. } = delivery;
                let (to, size) = (*entity, payload.len());
                match incoming::messages(message_format, payload) {
                    Ok(messages) => {
                        self.asked_bytes += size;
                        self.asked.push(EngineRequest::Send { link, delivery: id, settled, to, messages });
                    }
                    Err(unreadable) => self.answer(link, id, DeliveryState::rejected(unreadable.to_amqp())),
                }
            }
            Some(Link::Requests { session, node, .. }) => {
                let (session, node) = (*session, node.clone());
                if !delivery.settled {
                    self.answer(delivery.link, delivery.id, DeliveryState::Accepted);
                }
                self.on_request(session, &node, delivery.payload);
            }
            // A link that is going; what it still sends is not taken.
            _ => {}
        }
    }

    /// The message is on disk, or was refused.
    pub(super) fn on_sent(&mut self, link: amqp::LinkId, delivery: u32, result: Result<(), Error>) {
        let state = match result {
            Ok(()) => DeliveryState::Accepted,
            Err(error) => DeliveryState::rejected(to_amqp(&error)),
        };
        self.answer(link, delivery, state);
    }

    fn answer(&mut self, link: amqp::LinkId, delivery: u32, state: DeliveryState) {
        // Fails only when the link has gone, and with it whoever wanted to know.
        let _ = self.amqp.dispose(link, delivery, delivery, true, Some(state));
    }
}

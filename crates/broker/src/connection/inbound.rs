//! Deliveries from clients: messages for an entity, or requests to a node.

use amqp::{Delivery, DeliveryState};
use tokio::io::{AsyncRead, AsyncWrite};

use super::links::BrokerLink;
use super::{BrokerConnection, decode, to_amqp};
use crate::core::{Error, TransactionScope};
use crate::engine::EngineRequest;

impl<S: AsyncRead + AsyncWrite + Unpin> BrokerConnection<S> {
    pub(super) fn on_delivery(&mut self, delivery: Delivery) {
        match self.links.get(delivery.link) {
            Some(BrokerLink::Coordinator { .. }) => self.on_coordinator_delivery(delivery),
            Some(BrokerLink::Sender { entity, scope, session, .. }) => {
                let Delivery { link, id, settled, message_format, payload, state, .. } = delivery;
                let (to, size) = (*entity, payload.len());
                let scope = TransactionScope { connection: self.line.id(), session: session.number(), entity: *scope };
                match decode::decode_messages(message_format, payload) {
                    Ok(messages) if !self.settings.profile.take_credits(messages.len()) => {
                        self.on_sent(link, id, Err(Error::ServerBusy));
                    }
                    Ok(messages) => {
                        self.pending_bytes += size;
                        if let Some(DeliveryState::Transactional(state)) = state {
                            return self.send_in_transaction(
                                (link, id, settled),
                                state.transaction,
                                scope,
                                to,
                                messages,
                            );
                        }
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
            Err(error) if self.settings.profile.profile.detaches_publishers && error.is_about_the_message() => {
                return self.force_detach(link, to_amqp(&error));
            }
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

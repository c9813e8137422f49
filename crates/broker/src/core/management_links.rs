//! Links to the `$management` nodes of entities. They neither send nor receive messages, but they end with their
//! entity.

use std::collections::{BTreeSet, HashMap};

use super::Core;
use super::call_context::{CallContext, LinkEffect};
use super::entity::{Entity, EntityView};
use super::error::Error;
use super::id::{CoreLinkId, EntityId};
use super::name;

#[derive(Debug, Default)]
pub(super) struct ManagementLinks {
    by_entity: HashMap<EntityId, BTreeSet<CoreLinkId>>,
    by_link: HashMap<CoreLinkId, EntityId>,
}

impl ManagementLinks {
    fn insert(&mut self, link: CoreLinkId, entity: EntityId) {
        self.by_link.insert(link, entity);
        self.by_entity.entry(entity).or_default().insert(link);
    }

    pub(super) fn remove(&mut self, link: CoreLinkId) {
        let Some(entity) = self.by_link.remove(&link) else { return };
        if let Some(links) = self.by_entity.get_mut(&entity) {
            links.remove(&link);
            if links.is_empty() {
                self.by_entity.remove(&entity);
            }
        }
    }

    /// Removes and returns all links of an entity.
    fn remove_entity(&mut self, entity: EntityId) -> BTreeSet<CoreLinkId> {
        let links = self.by_entity.remove(&entity).unwrap_or_default();
        for link in &links {
            self.by_link.remove(link);
        }
        links
    }
}

impl Core {
    /// Attaches a link to the `$management` node of a queue, topic, subscription or dead-letter queue. When the entity
    /// is deleted the link gets [`LinkEffect::Detached`]; [`detach`](Core::detach) removes it earlier.
    pub fn attach_management(
        &mut self,
        call: &mut CallContext<'_>,
        link: CoreLinkId,
        address: &str,
    ) -> Result<(), Error> {
        self.handle_due_timers(call);
        let entity = self.find_address(address)?;
        self.management_links.insert(link, entity);
        Ok(())
    }

    /// Finds a queue, topic or subscription by its address or by that of its dead-letter queue.
    pub fn find_address(&self, address: &str) -> Result<EntityId, Error> {
        let (path, _) = name::split_subqueue(address);
        // Clients compare the path in the error with theirs, which may have upper-case letters.
        self.find_entity(&path).map_err(|_| Error::EntityNotFound { path: address.trim_matches('/').into() })
    }

    /// The entity at an address and, if it is a subscription, its topic.
    pub fn entities_at(&self, address: &str) -> Vec<EntityView<'_>> {
        let found = self.find_address(address).ok().and_then(|id| self.entities.get(&id));
        let topic = found.and_then(|entity| entity.topic).and_then(|id| self.entities.get(&id));
        found.into_iter().chain(topic).map(Entity::view).collect()
    }

    pub(super) fn detach_management_links(&mut self, call: &mut CallContext<'_>, entity: EntityId, error: &Error) {
        let links = self.management_links.remove_entity(entity);
        call.effects.extend(links.into_iter().map(|link| LinkEffect::Detached { link, error: error.clone() }));
    }
}

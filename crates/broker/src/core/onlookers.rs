//! Links that neither send to an entity nor receive from it, and still end with it: those of its `$management` node.

use std::collections::{BTreeSet, HashMap};

use super::Core;
use super::error::Error;
use super::id::{EntityId, LinkId};
use super::name;
use super::turn::{Effect, Turn};

#[derive(Debug, Default)]
pub(super) struct Onlookers {
    by_entity: HashMap<EntityId, BTreeSet<LinkId>>,
    by_link: HashMap<LinkId, EntityId>,
}

impl Onlookers {
    fn join(&mut self, link: LinkId, entity: EntityId) {
        self.by_link.insert(link, entity);
        self.by_entity.entry(entity).or_default().insert(link);
    }

    pub(super) fn leave(&mut self, link: LinkId) {
        let Some(entity) = self.by_link.remove(&link) else { return };
        if let Some(links) = self.by_entity.get_mut(&entity) {
            links.remove(&link);
            if links.is_empty() {
                self.by_entity.remove(&entity);
            }
        }
    }

    /// All of an entity's, which have then left.
    fn dismiss(&mut self, entity: EntityId) -> BTreeSet<LinkId> {
        let links = self.by_entity.remove(&entity).unwrap_or_default();
        for link in &links {
            self.by_link.remove(link);
        }
        links
    }
}

impl Core {
    /// A link to an entity's node attaches: to a queue, topic or subscription, or to the dead letters of one. It is told by
    /// [`Effect::Detached`] when the entity is deleted, and goes by [`detach`](Core::detach).
    pub fn look_on(&mut self, turn: &mut Turn<'_>, link: LinkId, address: &str) -> Result<(), Error> {
        self.begin(turn);
        let (path, _) = name::split_subqueue(address);
        let entity = self.find(&path)?;
        self.onlookers.join(link, entity);
        Ok(())
    }

    pub(super) fn dismiss_onlookers(&mut self, turn: &mut Turn<'_>, entity: EntityId, error: &Error) {
        let links = self.onlookers.dismiss(entity);
        turn.effects.extend(links.into_iter().map(|link| Effect::Detached { link, error: error.clone() }));
    }
}

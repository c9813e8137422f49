//! The broker's entities and its test hooks, for the HTTP side: every question is a call to the engine.

use std::sync::Arc;

use crate::atom::{Address, Entity, Kept, NamespaceInfo, Properties};
use crate::core::{self, Core, EntityDescription, EntityView, Error, Timestamp};
use crate::engine::{BrokerClock, EngineHandle, EngineStopped, FaultInjector};
use crate::http::{self, Failure, Fault, FaultKind, Listing, Page, TestCommand, TestControl, TestReport};

const NAME: &str = "headwater";

/// A handle: cheap to clone.
#[derive(Clone)]
pub(crate) struct Namespace {
    pub(crate) engine: EngineHandle,
    pub(crate) clock: Arc<BrokerClock>,
    pub(crate) faults: Arc<FaultInjector>,
    pub(crate) started_at: Timestamp,
    pub(crate) max_message_size: usize,
}

impl From<EngineStopped> for Failure {
    fn from(_: EngineStopped) -> Self {
        Self::Stopping
    }
}

impl http::Namespace for Namespace {
    fn info(&self) -> NamespaceInfo {
        NamespaceInfo {
            name: NAME.to_owned(),
            created_at: self.started_at,
            modified_at: self.started_at,
            max_message_size_in_kilobytes: self.max_message_size as u64 / 1024,
        }
    }

    async fn healthy(&self) -> bool {
        self.engine.call(|_, _| ()).await.is_ok()
    }

    async fn create(&self, at: Address, properties: Properties) -> Result<Entity, Failure> {
        let created = self.engine.call(move |core, call| {
            core.create(call, &at.to_string(), with_kept(properties))?;
            show(core, &at)
        });
        Ok(created.await??)
    }

    async fn update(&self, at: Address, properties: Properties) -> Result<Entity, Failure> {
        let updated = self.engine.call(move |core, call| {
            core.update(call, &at.to_string(), with_kept(properties))?;
            show(core, &at)
        });
        Ok(updated.await??)
    }

    async fn delete(&self, at: Address) -> Result<(), Failure> {
        Ok(self.engine.call(move |core, call| core.delete(call, &at.to_string())).await??)
    }

    async fn get(&self, at: Address) -> Result<Entity, Failure> {
        Ok(self.engine.call(move |core, _| show(core, &at)).await??)
    }

    async fn list(&self, listing: Listing, page: Page) -> Result<Vec<Entity>, Failure> {
        let listed = self.engine.call(move |core, _| {
            let is_wanted = |view: &EntityView<'_>| match listing {
                Listing::Queues => matches!(view.description, EntityDescription::Queue(_)),
                Listing::Topics => matches!(view.description, EntityDescription::Topic(_)),
                Listing::Subscriptions { .. } => true,
            };
            let cut = |views: &mut dyn Iterator<Item = EntityView<'_>>| {
                views.filter(is_wanted).skip(page.skip).take(page.top).map(|view| entity(&view)).collect::<Vec<_>>()
            };
            match &listing {
                Listing::Subscriptions { topic } => Ok(cut(&mut core.subscriptions(topic)?)),
                Listing::Queues | Listing::Topics => Ok::<_, Error>(cut(&mut core.entities())),
            }
        });
        Ok(listed.await??)
    }
}

impl TestControl for Namespace {
    async fn obey(&self, command: TestCommand) -> Result<TestReport, Failure> {
        match command {
            TestCommand::Report => {}
            TestCommand::AdvanceClock { ms } => {
                self.clock.advance(std::time::Duration::from_millis(ms));
                // What is due by now has happened when the answer goes out.
                self.engine.call(|core, call| core.tick(call)).await?;
            }
            TestCommand::Arm(fault) => self.arm(fault).await?,
            TestCommand::Disarm => self.faults.disarm(),
        }
        let (armed, struck) = self.faults.report();
        Ok(TestReport { now_ms: self.clock.now().0, armed, struck })
    }
}

impl Namespace {
    async fn arm(&self, fault: Fault) -> Result<(), Failure> {
        let path = fault.entity.clone();
        if let (FaultKind::ExpireSessionLock { session: Some(session) }, Some(path)) = (&fault.kind, &path) {
            let (session, path) = (session.clone(), path.clone());
            let lost = self.engine.call(move |core, call| {
                let queue = core.resolve_receive_address(&path)?;
                core.expire_session_lock(call, queue, &session)
            });
            lost.await??;
            self.faults.count_injected();
            return Ok(());
        }
        let entity = match path {
            None => None,
            Some(path) => Some(self.engine.call(move |core, _| core.entity(&path).map(|view| view.id)).await??),
        };
        self.faults.arm(entity, fault);
        Ok(())
    }
}

fn show(core: &Core, at: &Address) -> Result<Entity, Error> {
    core.entity(&at.to_string()).map(|view| entity(&view))
}

fn entity(view: &EntityView<'_>) -> Entity {
    // What does not read was written by a version that kept more; nothing depends on it.
    let kept: Option<Kept> =
        view.description.common().administration_data.as_ref().and_then(|kept| serde_json::from_str(&kept.0).ok());
    Entity::new(view, kept.unwrap_or_default())
}

fn with_kept(properties: Properties) -> EntityDescription {
    let Properties { mut description, kept } = properties;
    let text = serde_json::to_string(&kept).expect("what is kept is plain data");
    description.common_mut().administration_data =
        (kept != Kept::default()).then(|| core::AdministrationData(text.into()));
    description
}

//! Implements the HTTP backend: every request becomes a call to the engine.

use std::sync::Arc;

use crate::ServiceTier;
use crate::atom::{AdminEntity, EntityAddress, EntityProperties, NamespaceInfo, StoredOnlyProperties};
use crate::core::{self, CallContext, Core, EntityDefinition, EntityView, Error, Timestamp};
use crate::emulator_config::SubscriptionRules;
use crate::engine::{BrokerClock, EngineHandle, EngineStopped, FaultInjector};
use crate::http::{self, BackendError, EntityListing, FaultKind, FaultSpec, PageRange, TestCommand, TestReport};
use crate::rules::{CompiledRule, RuleDescription};

const NAME: &str = "headwater";

/// A handle, cheap to clone.
#[derive(Clone)]
pub(crate) struct HttpEngineBackend {
    pub(crate) engine: EngineHandle,
    pub(crate) clock: Arc<BrokerClock>,
    pub(crate) faults: Arc<FaultInjector>,
    pub(crate) started_at: Timestamp,
    pub(crate) tier: ServiceTier,
    pub(crate) max_message_size: usize,
    /// What a reset creates again.
    pub(crate) configured: Arc<ConfiguredEntities>,
}

/// Entities of the configuration, in the order of their creation, and the rules of subscriptions.
#[derive(Debug, Default)]
pub(crate) struct ConfiguredEntities {
    pub(crate) entities: Vec<(String, EntityDefinition)>,
    pub(crate) rules: SubscriptionRules,
}

impl From<EngineStopped> for BackendError {
    fn from(_: EngineStopped) -> Self {
        Self::Stopping
    }
}

impl http::NamespaceBackend for HttpEngineBackend {
    fn info(&self) -> NamespaceInfo {
        NamespaceInfo {
            name: NAME.to_owned(),
            created_at: self.started_at,
            modified_at: self.started_at,
            tier: self.tier,
            max_message_size_in_kilobytes: self.max_message_size as u64 / 1024,
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn is_healthy(&self) -> bool {
        self.engine.call(|_, _| ()).await.is_ok()
    }

    async fn create(
        &self,
        at: EntityAddress,
        properties: EntityProperties,
        first_rule: Option<RuleDescription>,
    ) -> Result<AdminEntity, BackendError> {
        let created = self.engine.call(move |core, call| {
            let (description, rules) = (into_stored_description(properties), first_rule.into_iter().collect());
            core.create_with_rules(call, &at.to_string(), description, rules)?;
            find_entity(core, &at)
        });
        Ok(created.await??)
    }

    async fn update(&self, at: EntityAddress, properties: EntityProperties) -> Result<AdminEntity, BackendError> {
        let updated = self.engine.call(move |core, call| {
            core.update(call, &at.to_string(), into_stored_description(properties))?;
            find_entity(core, &at)
        });
        Ok(updated.await??)
    }

    async fn delete(&self, at: EntityAddress) -> Result<(), BackendError> {
        Ok(self.engine.call(move |core, call| core.delete(call, &at.to_string())).await??)
    }

    async fn get(&self, at: EntityAddress) -> Result<AdminEntity, BackendError> {
        Ok(self.engine.call(move |core, _| find_entity(core, &at)).await??)
    }

    async fn list(&self, listing: EntityListing, page: PageRange) -> Result<Vec<AdminEntity>, BackendError> {
        let listed = self.engine.call(move |core, _| {
            let is_wanted = |view: &EntityView<'_>| match listing {
                EntityListing::Queues => matches!(view.description, EntityDefinition::Queue(_)),
                EntityListing::Topics => matches!(view.description, EntityDefinition::Topic(_)),
                EntityListing::Subscriptions { .. } => true,
            };
            let cut = |views: &mut dyn Iterator<Item = EntityView<'_>>| {
                views.filter(is_wanted).skip(page.skip).take(page.top).map(|view| entity(&view)).collect::<Vec<_>>()
            };
            match &listing {
                EntityListing::Subscriptions { topic } => Ok(cut(&mut core.subscriptions(topic)?)),
                EntityListing::Queues | EntityListing::Topics => Ok::<_, Error>(cut(&mut core.entities())),
            }
        });
        Ok(listed.await??)
    }

    async fn put_rule(
        &self,
        subscription: EntityAddress,
        rule: RuleDescription,
        replace: bool,
    ) -> Result<Arc<CompiledRule>, BackendError> {
        let stored = self.engine.call(move |core, call| match replace {
            true => core.update_rule(call, &subscription.to_string(), rule),
            false => core.add_rule(call, &subscription.to_string(), rule),
        });
        Ok(stored.await??)
    }

    async fn delete_rule(&self, subscription: EntityAddress, name: String) -> Result<(), BackendError> {
        let removed = self.engine.call(move |core, call| core.remove_rule(call, &subscription.to_string(), &name));
        Ok(removed.await??)
    }

    async fn get_rule(&self, subscription: EntityAddress, name: String) -> Result<Arc<CompiledRule>, BackendError> {
        Ok(self.engine.call(move |core, _| core.rule(&subscription.to_string(), &name).cloned()).await??)
    }

    async fn list_rules(
        &self,
        subscription: EntityAddress,
        page: PageRange,
    ) -> Result<Vec<Arc<CompiledRule>>, BackendError> {
        let listed = self.engine.call(move |core, _| {
            let rules = core.rules(&subscription.to_string())?;
            Ok::<_, Error>(rules.skip(page.skip).take(page.top).cloned().collect())
        });
        Ok(listed.await??)
    }

    async fn run_test_command(&self, command: TestCommand) -> Result<TestReport, BackendError> {
        match command {
            TestCommand::Report => {}
            TestCommand::AdvanceClock { ms } => {
                self.clock.advance(std::time::Duration::from_millis(ms));
                // Everything that is due by the new time happens before the reply.
                self.engine.call(|core, call| core.tick(call)).await?;
            }
            TestCommand::Arm(fault) => self.arm(fault).await?,
            TestCommand::Disarm => self.faults.disarm(),
            TestCommand::Reset => {
                self.faults.disarm();
                let configured = Arc::clone(&self.configured);
                self.engine.call(move |core, call| reset(core, call, &configured)).await??;
            }
        }
        let (armed, injected) = self.faults.report();
        Ok(TestReport { now_ms: self.clock.now().0, armed, injected })
    }
}

impl HttpEngineBackend {
    async fn arm(&self, fault: FaultSpec) -> Result<(), BackendError> {
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

/// Deletes everything, then creates the configured entities.
fn reset(core: &mut Core, call: &mut CallContext<'_>, configured: &ConfiguredEntities) -> Result<(), Error> {
    let is_subscription = |view: &EntityView<'_>| matches!(view.description, EntityDefinition::Subscription(_));
    // Subscriptions are deleted with their topics.
    let paths = core.entities().filter(|view| !is_subscription(view)).map(|view| view.path.to_owned());
    for path in paths.collect::<Vec<_>>() {
        core.delete(call, &path)?;
    }
    for (path, description) in &configured.entities {
        let rules = configured.rules.get(path).cloned().unwrap_or_default();
        core.create_with_rules(call, path, description.clone(), rules)?;
    }
    Ok(())
}

fn find_entity(core: &Core, at: &EntityAddress) -> Result<AdminEntity, Error> {
    core.entity(&at.to_string()).map(|view| entity(&view))
}

fn entity(view: &EntityView<'_>) -> AdminEntity {
    // Data that cannot be parsed was written by a newer version. Nothing depends on it.
    let kept: Option<StoredOnlyProperties> =
        view.description.common().administration_data.as_ref().and_then(|kept| serde_json::from_str(&kept.0).ok());
    AdminEntity::new(view, kept.unwrap_or_default())
}

fn into_stored_description(properties: EntityProperties) -> EntityDefinition {
    let EntityProperties { mut description, passive } = properties;
    let text = serde_json::to_string(&passive).expect("passive properties are plain data");
    description.common_mut().administration_data =
        (passive != StoredOnlyProperties::default()).then(|| core::AdministrationData(text.into()));
    description
}

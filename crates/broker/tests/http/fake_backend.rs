//! A backend that is the core behind a lock, with a manual clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use broker::atom::{AdminEntity, EntityAddress, EntityProperties, NamespaceInfo, StoredOnlyProperties};
use broker::core::{BrokerLimits, CallContext, Core, EntityDefinition, Error, Timestamp};
use broker::http::{BackendError, EntityListing, NamespaceBackend, PageRange, TestCommand, TestReport};
use broker::journal::VolatileJournal;
use broker::rules::{CompiledRule, RuleDescription};

#[derive(Clone)]
pub(crate) struct FakeBackend(Arc<Mutex<FakeState>>);

pub(crate) struct FakeState {
    core: Core,
    journal: VolatileJournal,
    passive: HashMap<String, StoredOnlyProperties>,
    pub(crate) now: Timestamp,
    pub(crate) healthy: bool,
    pub(crate) commands: Vec<TestCommand>,
}

impl FakeBackend {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(FakeState {
            core: Core::new(BrokerLimits::default(), [7; 32]),
            journal: VolatileJournal::default(),
            passive: HashMap::new(),
            now: Timestamp(1_767_323_045_678),
            healthy: true,
            commands: Vec::new(),
        })))
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut FakeState) -> T) -> T {
        act(&mut self.0.lock().expect("no test panics inside"))
    }
}

impl FakeState {
    fn call<T>(
        &mut self,
        act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> Result<T, Error>,
    ) -> Result<T, BackendError> {
        let mut call = CallContext { now: self.now, journal: &mut self.journal, effects: &mut Vec::new() };
        Ok(act(&mut self.core, &mut call)?)
    }

    fn entity(&self, at: &EntityAddress) -> Result<AdminEntity, BackendError> {
        let view = self.core.entity(&at.to_string())?;
        let passive = self.passive.get(&view.path.to_lowercase()).cloned().unwrap_or_default();
        Ok(AdminEntity::new(&view, passive))
    }

    fn keep(&mut self, at: &EntityAddress, passive: StoredOnlyProperties) {
        self.passive.insert(at.to_string().to_lowercase(), passive);
    }
}

impl NamespaceBackend for FakeBackend {
    fn info(&self) -> NamespaceInfo {
        NamespaceInfo {
            name: "sbemulatorns".into(),
            created_at: Timestamp(1_767_323_045_000),
            modified_at: Timestamp(1_767_323_045_000),
            tier: broker::ServiceTier::Standard,
            max_message_size_in_kilobytes: 256,
        }
    }

    fn now(&self) -> Timestamp {
        self.with(|state| state.now)
    }

    async fn is_healthy(&self) -> bool {
        self.with(|state| state.healthy)
    }

    async fn create(
        &self,
        at: EntityAddress,
        properties: EntityProperties,
        first_rule: Option<RuleDescription>,
    ) -> Result<AdminEntity, BackendError> {
        self.with(|state| {
            let rules = first_rule.into_iter().collect();
            state.call(|core, call| core.create_with_rules(call, &at.to_string(), properties.description, rules))?;
            state.keep(&at, properties.passive);
            state.entity(&at)
        })
    }

    async fn update(&self, at: EntityAddress, properties: EntityProperties) -> Result<AdminEntity, BackendError> {
        self.with(|state| {
            state.call(|core, call| core.update(call, &at.to_string(), properties.description))?;
            state.keep(&at, properties.passive);
            state.entity(&at)
        })
    }

    async fn delete(&self, at: EntityAddress) -> Result<(), BackendError> {
        self.with(|state| state.call(|core, call| core.delete(call, &at.to_string())))
    }

    async fn get(&self, at: EntityAddress) -> Result<AdminEntity, BackendError> {
        self.with(|state| state.entity(&at))
    }

    async fn list(&self, listing: EntityListing, page: PageRange) -> Result<Vec<AdminEntity>, BackendError> {
        self.with(|state| {
            let views: Vec<_> = match &listing {
                EntityListing::Subscriptions { topic } => state.core.subscriptions(topic)?.collect(),
                EntityListing::Queues => state
                    .core
                    .entities()
                    .filter(|view| matches!(view.description, EntityDefinition::Queue(_)))
                    .collect(),
                EntityListing::Topics => state
                    .core
                    .entities()
                    .filter(|view| matches!(view.description, EntityDefinition::Topic(_)))
                    .collect(),
            };
            let page = views.iter().skip(page.skip).take(page.top);
            let passive = |path: &str| state.passive.get(&path.to_lowercase()).cloned().unwrap_or_default();
            Ok(page.map(|view| AdminEntity::new(view, passive(view.path))).collect())
        })
    }

    async fn put_rule(
        &self,
        subscription: EntityAddress,
        rule: RuleDescription,
        replace: bool,
    ) -> Result<Arc<CompiledRule>, BackendError> {
        let path = subscription.to_string();
        self.with(|state| {
            state.call(|core, call| match replace {
                true => core.update_rule(call, &path, rule),
                false => core.add_rule(call, &path, rule),
            })
        })
    }

    async fn delete_rule(&self, subscription: EntityAddress, name: String) -> Result<(), BackendError> {
        self.with(|state| state.call(|core, call| core.remove_rule(call, &subscription.to_string(), &name)))
    }

    async fn get_rule(&self, subscription: EntityAddress, name: String) -> Result<Arc<CompiledRule>, BackendError> {
        self.with(|state| Ok(state.core.rule(&subscription.to_string(), &name).cloned()?))
    }

    async fn list_rules(
        &self,
        subscription: EntityAddress,
        page: PageRange,
    ) -> Result<Vec<Arc<CompiledRule>>, BackendError> {
        self.with(|state| {
            let rules = state.core.rules(&subscription.to_string())?;
            Ok(rules.skip(page.skip).take(page.top).cloned().collect())
        })
    }

    async fn run_test_command(&self, command: TestCommand) -> Result<TestReport, BackendError> {
        self.with(|state| {
            if let TestCommand::AdvanceClock { ms } = command {
                state.now.0 += ms;
            }
            state.commands.push(command);
            Ok(TestReport { now_ms: state.now.0, ..TestReport::default() })
        })
    }
}

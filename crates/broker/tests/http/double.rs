//! A namespace that is the core itself behind a lock, with a clock that stands still.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use broker::atom::{Address, Entity, Kept, NamespaceInfo, Properties};
use broker::core::{BrokerLimits, CallContext, Core, EntityDescription, Error, Timestamp};
use broker::http::{Failure, Listing, Namespace, Page, TestCommand, TestControl, TestReport};
use broker::journal::VolatileJournal;

#[derive(Clone)]
pub(crate) struct Double(Arc<Mutex<State>>);

pub(crate) struct State {
    core: Core,
    journal: VolatileJournal,
    kept: HashMap<String, Kept>,
    pub(crate) now: Timestamp,
    pub(crate) healthy: bool,
    pub(crate) commands: Vec<TestCommand>,
}

impl Double {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            core: Core::new(BrokerLimits::default(), [7; 32]),
            journal: VolatileJournal::default(),
            kept: HashMap::new(),
            now: Timestamp(1_767_323_045_678),
            healthy: true,
            commands: Vec::new(),
        })))
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().expect("no test panics inside"))
    }
}

impl State {
    fn call<T>(&mut self, act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> Result<T, Error>) -> Result<T, Failure> {
        let mut call = CallContext { now: self.now, journal: &mut self.journal, effects: &mut Vec::new() };
        Ok(act(&mut self.core, &mut call)?)
    }

    fn entity(&self, at: &Address) -> Result<Entity, Failure> {
        let view = self.core.entity(&at.to_string())?;
        let kept = self.kept.get(&view.path.to_lowercase()).cloned().unwrap_or_default();
        Ok(Entity::new(&view, kept))
    }

    fn keep(&mut self, at: &Address, kept: Kept) {
        self.kept.insert(at.to_string().to_lowercase(), kept);
    }
}

impl Namespace for Double {
    fn info(&self) -> NamespaceInfo {
        NamespaceInfo {
            name: "sbemulatorns".into(),
            created_at: Timestamp(1_767_323_045_000),
            modified_at: Timestamp(1_767_323_045_000),
            max_message_size_in_kilobytes: 256,
        }
    }

    async fn healthy(&self) -> bool {
        self.with(|state| state.healthy)
    }

    async fn create(&self, at: Address, properties: Properties) -> Result<Entity, Failure> {
        self.with(|state| {
            state.call(|core, call| core.create(call, &at.to_string(), properties.description))?;
            state.keep(&at, properties.kept);
            state.entity(&at)
        })
    }

    async fn update(&self, at: Address, properties: Properties) -> Result<Entity, Failure> {
        self.with(|state| {
            state.call(|core, call| core.update(call, &at.to_string(), properties.description))?;
            state.keep(&at, properties.kept);
            state.entity(&at)
        })
    }

    async fn delete(&self, at: Address) -> Result<(), Failure> {
        self.with(|state| state.call(|core, call| core.delete(call, &at.to_string())))
    }

    async fn get(&self, at: Address) -> Result<Entity, Failure> {
        self.with(|state| state.entity(&at))
    }

    async fn list(&self, listing: Listing, page: Page) -> Result<Vec<Entity>, Failure> {
        self.with(|state| {
            let views: Vec<_> = match &listing {
                Listing::Subscriptions { topic } => state.core.subscriptions(topic)?.collect(),
                Listing::Queues => state
                    .core
                    .entities()
                    .filter(|view| matches!(view.description, EntityDescription::Queue(_)))
                    .collect(),
                Listing::Topics => state
                    .core
                    .entities()
                    .filter(|view| matches!(view.description, EntityDescription::Topic(_)))
                    .collect(),
            };
            let page = views.iter().skip(page.skip).take(page.top);
            let kept = |path: &str| state.kept.get(&path.to_lowercase()).cloned().unwrap_or_default();
            Ok(page.map(|view| Entity::new(view, kept(view.path))).collect())
        })
    }
}

impl TestControl for Double {
    async fn obey(&self, command: TestCommand) -> Result<TestReport, Failure> {
        self.with(|state| {
            if let TestCommand::AdvanceClock { ms } = command {
                state.now.0 += ms;
            }
            state.commands.push(command);
            Ok(TestReport { now_ms: state.now.0, ..TestReport::default() })
        })
    }
}

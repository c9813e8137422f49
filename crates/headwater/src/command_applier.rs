//! The applier of a command: applies single events under the rules of pods, with the stored read models and the stored pauses.

use anyhow::{Context, bail};
use mongodb::Database;
use pipeline::erasure::ErasureStore;
use pipeline::producer::ProducerDependencies;
use pipeline::source::SourceKind;
use pipeline::view::{self, Applier, ApplierSetup, OrderingMode, SourceEventReader};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::connect;
use crate::exit::ExitReason;
use crate::pauses::PauseStore;

pub(crate) struct CommandApplier {
    pub(crate) views: Database,
    handle: view::Handle,
    ended: CancellationToken,
    task: JoinHandle<()>,
}

impl CommandApplier {
    pub(crate) async fn start(config: &Config, dependencies: &ProducerDependencies) -> anyhow::Result<Self> {
        let Some(views) = connect::read_model_database(config).await? else {
            bail!(ExitReason::Misconfigured.with_message("`read_models` declares no read model"));
        };
        let applier = Applier::new(ApplierSetup {
            config: config.consumer.view.clone(),
            database: views.clone(),
            pipeline: config.pipeline.clone(),
            mode: Self::mode(config),
            by_collection: config.source.kind == SourceKind::Documents,
            models: connect::model_set(config, &dependencies.coordination).await?,
            history: SourceEventReader::new(&dependencies.server.database(&config.source.database), &config.source),
        })?;
        let (handle, ended) = (applier.handle(), CancellationToken::new());
        let erasures = ErasureStore::new(&views, &dependencies.coordination, &config.pipeline);
        handle.set_erased(erasures.load().await?);
        let pauses = PauseStore::new(&dependencies.coordination, &config.pipeline).load().await?;
        handle.set_paused_models(pauses.paused_models());
        let task = tokio::spawn(applier.run(ended.clone()));
        Ok(Self { views, handle, ended, task })
    }

    pub(crate) fn mode(config: &Config) -> OrderingMode {
        let filtered = !config.producer.capture.filter.is_empty();
        config.consumer.view.mode(&config.source, connect::pipeline_start(config), filtered)
    }

    pub(crate) fn handle(&self) -> view::Handle {
        self.handle.clone()
    }

    /// Returns when everything that was submitted is resolved.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.ended.cancel();
        self.task.await.context("applier task failed")
    }
}

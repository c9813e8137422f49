//! The capture filter for documents of the source that others than capture read.

use mongodb::Client;
use mongodb::bson::{RawDocument, RawDocumentBuf};

use super::config::Config;
use super::error::Error;
use super::filter::{self, SyntheticOperation};
use super::source_client::SourceClient;
use crate::event::{Namespace, ResumeToken};
use crate::source::SourceConfig;

/// Passes exactly the documents whose inserts capture would pass.
#[derive(Clone, Debug)]
pub struct SourceFilter {
    source_client: SourceClient,
}

impl SourceFilter {
    /// `None` without a filter.
    pub fn new(client: &Client, source: &SourceConfig, config: &Config) -> Option<Self> {
        let source_client = SourceClient::new(client, source.clone(), config.clone());
        (!config.filter.is_empty()).then_some(Self { source_client })
    }

    /// The documents that pass, each with its index in the input and as the filter leaves it. `now`: any token of the stream; the filter sees it in
    /// place of the token of each insert, which is unknown.
    pub async fn apply(
        &self,
        now: &ResumeToken,
        namespace: &Namespace,
        documents: &[&RawDocument],
    ) -> Result<Vec<(usize, RawDocumentBuf)>, Error> {
        let passed = filter::apply(&self.source_client, now, namespace, SyntheticOperation::Insert, documents).await?;
        let document = |passed: filter::FilteredDocument| match passed.document {
            Some(document) => Ok((passed.at, document)),
            None => Err(Error::Unreadable { problem: "has no `fullDocument`" }),
        };
        passed.into_iter().map(document).collect()
    }
}

//! What must hold between keys. A rule is asked only about keys that were said well.

use std::path::Path;

use pipeline::capture::PipelineStart;
use pipeline::event::Namespace;
use pipeline::source::{FullDocument, SourceKind};
use servicebus::ConnectionString;

use super::load::{ReadFile, Settings};
use super::node::Origin;
use super::problem::Problem;
use super::{Config, own, texts, units};

pub(super) fn check(config: &Config, settings: &Settings, read_file: ReadFile<'_>, problems: &mut Vec<Problem>) {
    let mut rules = Rules { config, settings, problems };
    rules.collections();
    rules.kind();
    rules.beginning();
    rules.lease();
    rules.connections();
    rules.bus(read_file);
    rules.own_collections();
    let Rules { problems, .. } = rules;
    config.read_models.keep_out(config, settings, problems);
    config.read_models.fit(&config.source, settings, problems);
}

struct Rules<'a> {
    config: &'a Config,
    settings: &'a Settings,
    problems: &'a mut Vec<Problem>,
}

impl Rules<'_> {
    fn wrong(&mut self, path: &str, what: impl Into<String>) {
        self.problems.push(Problem::at(self.settings.origin(path), path, what));
    }

    fn collections(&mut self) {
        const ONE: &str = "source.collection";
        const SEVERAL: &str = "source.collections";
        if !self.settings.sound(&[ONE, SEVERAL]) {
            return;
        }
        let source = &self.config.source;
        match (&source.collection, &source.collections[..]) {
            (None, []) if self.settings.origin(SEVERAL) == Origin::Nowhere => {
                let what = "is missing; write, for example, `collection: events`, or several under `collections`";
                self.wrong(ONE, what);
            }
            (None, []) => self.wrong(SEVERAL, "is empty; write, for example, `[orders, customers]`"),
            (Some(one), [first, ..]) => {
                let what = format!(
                    "is said beside `{ONE}`, which is `{one}`; keep one of them, such as `collections: [{one}, {first}]`"
                );
                self.wrong(SEVERAL, what);
            }
            (Some(_), []) => {}
            (None, several) => {
                if let Some(bad) = several.iter().find(|name| !texts::is_collection(name)) {
                    self.wrong(
                        SEVERAL,
                        format!("has `{bad}`, which no collection can be called; write, for example, `orders`"),
                    );
                }
                let twice = several.iter().enumerate().find(|(at, name)| several[..*at].contains(name));
                if let Some((_, name)) = twice {
                    self.wrong(SEVERAL, format!("names `{name}` twice; name it once"));
                }
            }
        }
    }

    /// What only one kind of source has, and was said of the other.
    fn kind(&mut self) {
        if !self.settings.sound(&["source.kind"]) {
            return;
        }
        let source = &self.config.source;
        match source.kind {
            SourceKind::Events if source.full_document == FullDocument::PostImage => {
                let what = "is `post_image`, which only `kind: documents` has: an event is never updated; leave it out";
                self.wrong("source.full_document", what);
            }
            SourceKind::Events => {}
            SourceKind::Documents => {
                let (aggregate_id, event_type) = (source.aggregate_id.clone(), source.event_type.clone());
                let names = [
                    ("source.aggregate_id", aggregate_id, "aggregateId", "its documents are told apart by `_id`"),
                    ("source.event_type", event_type, "type", "the type is `insert`, `update`, `replace` or `delete`"),
                ];
                for (path, said, default, why) in names {
                    if said != default && self.settings.sound(&[path]) {
                        self.wrong(path, format!("is `{said}`, and for `kind: documents` {why}; leave it out"));
                    }
                }
            }
        }
    }

    fn beginning(&mut self) {
        let sound = self.settings.sound(&["source.kind", "source.sequence", "producer.start"]);
        let Config { source, producer, .. } = self.config;
        if sound
            && (source.kind, producer.start) == (SourceKind::Events, PipelineStart::Beginning)
            && source.sequence.is_none()
        {
            let what = "is missing, and `producer.start: beginning` needs it: without it old events have no order; write, for example, \
                        `sequence: version`, or `producer.start: now`";
            self.wrong("source.sequence", what);
        }
    }

    fn lease(&mut self) {
        let named = ["ttl", "renew_deadline", "heartbeat", "poll", "max_clock_skew"];
        let named = named.map(|name| format!("coordination.lease.{name}"));
        let paths = named.each_ref().map(String::as_str);
        if !self.settings.sound(&paths) {
            return;
        }
        let Err(invalid) = self.config.coordination.lease.validate() else { return };
        // Of the keys that were set, the one to look at first.
        let path = self.settings.first_set(&paths).unwrap_or("coordination.lease.ttl");
        let said = self.settings.duration(path).map(units::duration_text).unwrap_or_default();
        let what = format!(
            "is `{said}`, and does not go with its neighbours: {invalid}; the defaults are ttl 15s, renew_deadline 10s, heartbeat 5s"
        );
        self.wrong(path, what);
    }

    fn connections(&mut self) {
        const CONNECTIONS: &str = "consumer.connections";
        const SESSIONS: &str = "consumer.max_concurrent_sessions";
        let session = &self.config.consumer.session;
        let (connections, sessions) = (session.connections, session.max_concurrent_sessions);
        if !self.settings.sound(&[CONNECTIONS, SESSIONS]) || connections <= sessions {
            return;
        }
        let defaults = "the defaults are 2 and 256";
        if self.settings.first_set(&[CONNECTIONS]).is_some() {
            let what =
                format!("is `{connections}`, and must not exceed `{SESSIONS}`, which is `{sessions}`; {defaults}");
            self.wrong(CONNECTIONS, what);
        } else {
            let what = format!(
                "is `{sessions}`, and must not be less than `{CONNECTIONS}`, which is `{connections}`; {defaults}"
            );
            self.wrong(SESSIONS, what);
        }
    }

    fn bus(&mut self, read_file: ReadFile<'_>) {
        const STRING: &str = "service_bus.connection_string";
        const TOPIC: &str = "service_bus.topic";
        const CA: &str = "service_bus.ca_file";
        let bus = &self.config.service_bus;
        if let Some(file) = bus.ca_file.as_deref().and_then(Path::to_str)
            && let Err(error) = read_file(file)
        {
            self.wrong(CA, format!("is `{file}`, which cannot be read ({error}); name a PEM file that can"));
        }
        let Ok(at) = ConnectionString::parse(bus.connection_string.reveal()) else { return };
        if !self.settings.sound(&[STRING]) {
            return;
        }
        if at.emulator && bus.ca_file.is_some() {
            let what = "trusts nobody: `UseDevelopmentEmulator=true` in the connection string means no TLS; leave one of them out";
            self.wrong(CA, what);
        }
        if let Some(entity) = at.entity_path.filter(|entity| self.settings.sound(&[TOPIC]) && *entity != bus.topic) {
            let topic = &bus.topic;
            let what = format!(
                "has `EntityPath={entity}`, and `{TOPIC}` is `{topic}`; write `topic: {entity}`, or leave `EntityPath` out"
            );
            self.wrong(STRING, what);
        }
    }

    /// What pods write must not be read as the source.
    fn own_collections(&mut self) {
        let needed = ["source.uri", "source.database", "source.collection", "source.collections", "coordination.uri"];
        let Config { source, source_uri, coordination, .. } = self.config;
        if !self.settings.sound(&needed)
            || !self.settings.sound(&["coordination.database"])
            || *source_uri != coordination.uri
        {
            return;
        }
        let captured = source.namespaces();
        let ours = |name: &&&str| captured.contains(&Namespace::new(&coordination.database, **name));
        let path = if source.collection.is_some() { "source.collection" } else { "source.collections" };
        let found: Vec<_> = own::COORDINATION.iter().filter(ours).collect();
        for name in found {
            let what = format!(
                "is `{name}` in the database that pods agree in, which they write themselves; give `coordination.database` another name"
            );
            self.wrong(path, what);
        }
    }
}

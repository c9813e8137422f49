//! Rules between keys. A rule is checked only if all keys it needs are valid.

use std::path::Path;

use pipeline::capture::StartPosition;
use pipeline::event::Namespace;
use pipeline::source::{FullDocument, SourceKind};
use servicebus::ConnectionString;

use super::load::{ReadFile, ResolvedSettings};
use super::node::SettingOrigin;
use super::problem::ConfigProblem;
use super::service_bus::{NAMESPACE, STRING};
use super::{BusAccess, Config, formats, reserved, schema, units};

pub(super) fn check(
    config: &Config,
    settings: &ResolvedSettings,
    read_file: ReadFile<'_>,
    problems: &mut Vec<ConfigProblem>,
) {
    let mut rules = RuleChecker { config, settings, problems };
    rules.check_collections();
    rules.check_kind();
    rules.check_start();
    rules.check_lease();
    rules.check_connections();
    rules.check_service_bus(read_file);
    rules.check_message_signing();
    rules.check_admin(read_file);
    rules.check_reserved_collections();
    let RuleChecker { problems, .. } = rules;
    config.read_models.check_collections(config, settings, problems);
    config.read_models.check_event_types(&config.source, settings, problems);
}

struct RuleChecker<'a> {
    config: &'a Config,
    settings: &'a ResolvedSettings,
    problems: &'a mut Vec<ConfigProblem>,
}

impl RuleChecker<'_> {
    fn report(&mut self, path: &str, what: impl Into<String>) {
        self.problems.push(ConfigProblem::at(self.settings.origin(path), path, what));
    }

    fn check_collections(&mut self) {
        const ONE: &str = "source.collection";
        const SEVERAL: &str = "source.collections";
        if !self.settings.are_valid(&[ONE, SEVERAL]) {
            return;
        }
        let source = &self.config.source;
        match (&source.collection, &source.collections[..]) {
            (None, []) if self.settings.origin(SEVERAL) == SettingOrigin::Unset => {
                let what = "is missing; write, for example, `collection: events`, or several under `collections`";
                self.report(ONE, what);
            }
            (None, []) => self.report(SEVERAL, "is empty; write, for example, `[orders, customers]`"),
            (Some(one), [first, ..]) => {
                let what = format!(
                    "is set together with `{ONE}`, which is `{one}`; keep one of them, for example `collections: [{one}, {first}]`"
                );
                self.report(SEVERAL, what);
            }
            (Some(_), []) => {}
            (None, several) => {
                if let Some(bad) = several.iter().find(|name| !formats::is_collection(name)) {
                    self.report(
                        SEVERAL,
                        format!("has `{bad}`, which is not a valid collection name; write, for example, `orders`"),
                    );
                }
                let twice = several.iter().enumerate().find(|(at, name)| several[..*at].contains(name));
                if let Some((_, name)) = twice {
                    self.report(SEVERAL, format!("names `{name}` twice; name it once"));
                }
            }
        }
    }

    /// Settings that apply to only one kind of source.
    fn check_kind(&mut self) {
        if !self.settings.are_valid(&["source.kind"]) {
            return;
        }
        let source = &self.config.source;
        match source.kind {
            SourceKind::Events if source.full_document == FullDocument::PostImage => {
                let what = "is `post_image`, which applies only to `kind: documents`; remove it";
                self.report("source.full_document", what);
            }
            SourceKind::Events => {}
            SourceKind::Documents => {
                let (aggregate_id, event_type) = (source.aggregate_id.clone(), source.event_type.clone());
                let names = [
                    ("source.aggregate_id", aggregate_id, "aggregateId", "the aggregate id is always `_id`"),
                    (
                        "source.event_type",
                        event_type,
                        "type",
                        "the type is always `insert`, `update`, `replace` or `delete`",
                    ),
                ];
                for (path, value, default, why) in names {
                    if value != default && self.settings.are_valid(&[path]) {
                        self.report(path, format!("is `{value}`, but for `kind: documents` {why}; remove it"));
                    }
                }
            }
        }
    }

    fn check_start(&mut self) {
        let valid = self.settings.are_valid(&["source.kind", "source.sequence", "producer.start"]);
        let Config { source, producer, .. } = self.config;
        if valid
            && (source.kind, producer.start) == (SourceKind::Events, StartPosition::Beginning)
            && source.sequence.is_none()
        {
            let what = "is missing, but `producer.start: beginning` needs it to order existing events; write, for example, `sequence: version`, \
                        or use `producer.start: now`";
            self.report("source.sequence", what);
        }
    }

    fn check_lease(&mut self) {
        let named = ["ttl", "renew_deadline", "heartbeat", "poll", "max_clock_skew"];
        let named = named.map(|name| format!("coordination.lease.{name}"));
        let paths = named.each_ref().map(String::as_str);
        if !self.settings.are_valid(&paths) {
            return;
        }
        let Err(invalid) = self.config.coordination.lease.validate() else { return };
        // Report the first key that the user has set: the others have their defaults.
        let path = self.settings.first_set(&paths).unwrap_or("coordination.lease.ttl");
        let value = self.settings.duration(path).map(units::format_duration).unwrap_or_default();
        let what = format!(
            "is `{value}`, which does not fit the other lease settings: {invalid}; the defaults are ttl {}, renew_deadline {}, heartbeat {}",
            schema::default_of(paths[0]),
            schema::default_of(paths[1]),
            schema::default_of(paths[2])
        );
        self.report(path, what);
    }

    fn check_connections(&mut self) {
        const CONNECTIONS: &str = "consumer.connections";
        const SESSIONS: &str = "consumer.max_concurrent_sessions";
        let session = &self.config.consumer.session;
        let (connections, sessions) = (session.connections, session.max_concurrent_sessions);
        if !self.settings.are_valid(&[CONNECTIONS, SESSIONS]) || connections <= sessions {
            return;
        }
        let defaults = format!(
            "the defaults are {} connections and {} sessions",
            schema::default_of(CONNECTIONS),
            schema::default_of(SESSIONS)
        );
        if self.settings.first_set(&[CONNECTIONS]).is_some() {
            let what =
                format!("is `{connections}`, but must not exceed `{SESSIONS}`, which is `{sessions}`; {defaults}");
            self.report(CONNECTIONS, what);
        } else {
            let what = format!(
                "is `{sessions}`, but must not be less than `{CONNECTIONS}`, which is `{connections}`; {defaults}"
            );
            self.report(SESSIONS, what);
        }
    }

    fn check_service_bus(&mut self, read_file: ReadFile<'_>) {
        const TOPIC: &str = "service_bus.topic";
        const CA: &str = "service_bus.ca_file";
        let bus = &self.config.service_bus;
        if let Some(file) = bus.ca_file.as_deref().and_then(Path::to_str)
            && let Err(error) = read_file(file)
        {
            self.report(CA, format!("is `{file}`, which cannot be read ({error}); name a readable PEM file"));
        }
        self.check_bus_access();
        let BusAccess::ConnectionString(text) = &bus.access else { return };
        let Ok(at) = ConnectionString::parse(text.reveal()) else { return };
        if !self.settings.are_valid(&[STRING]) {
            return;
        }
        if at.emulator && bus.ca_file.is_some() {
            let what = "has no effect: `UseDevelopmentEmulator=true` in the connection string turns TLS off; remove one of them";
            self.report(CA, what);
        }
        if let Some(entity) = at.entity_path.filter(|entity| self.settings.are_valid(&[TOPIC]) && *entity != bus.topic)
        {
            let topic = &bus.topic;
            let what = format!(
                "has `EntityPath={entity}`, but `{TOPIC}` is `{topic}`; write `topic: {entity}`, or remove `EntityPath`"
            );
            self.report(STRING, what);
        }
    }

    fn check_bus_access(&mut self) {
        const CERTIFICATE: &str = "service_bus.entra.certificate_file";
        // `config reference` and `config print` write defaults.
        let is_default = |path: &str| {
            schema::key(path).is_some_and(|key| key.has_default() && self.settings.text(path) == Some(&*key.example()))
        };
        let is_set = |path: &str| self.settings.origin(path) != SettingOrigin::Unset;
        let entra = schema::keys_below("service_bus.entra")
            .filter(|path| is_set(path) && !is_default(path))
            .collect::<Vec<_>>();
        match (is_set(STRING), is_set(NAMESPACE)) {
            (false, false) if self.settings.are_valid(&[STRING, NAMESPACE]) => {
                let example = schema::key(STRING).expect("is in the table").example();
                let what = format!("is missing; write, for example, `{example}`, or set `{NAMESPACE}` to use Entra ID");
                self.report(STRING, what);
            }
            (true, true) => self.report(NAMESPACE, format!("is set together with `{STRING}`; remove one of them")),
            (true, false) => {
                for path in entra {
                    self.report(path, format!("has no effect without `{NAMESPACE}`; set it, or remove this key"));
                }
            }
            (false, true) if self.settings.text(CERTIFICATE).is_some_and(|file| !Path::new(file).is_absolute()) => {
                self.report(CERTIFICATE, "must be an absolute path");
            }
            (false, _) => {}
        }
    }

    fn check_message_signing(&mut self) {
        const KEYS: &str = "message_signing.keys";
        const SIGN_WITH: &str = "message_signing.sign_with";
        if !self.settings.are_valid(&[KEYS]) {
            return;
        }
        let Some(keys) = &self.config.message_keys else {
            for path in [SIGN_WITH, "message_signing.accept_unsigned_until"] {
                if self.settings.text(path).is_some() {
                    self.report(path, format!("is set without `{KEYS}`; set the keys too, or remove it"));
                }
            }
            return;
        };
        if let Some(id) = self.settings.text(SIGN_WITH).filter(|id| !keys.ids().any(|known| known == *id)) {
            let ids: Vec<_> = keys.ids().collect();
            self.report(SIGN_WITH, format!("is `{id}`, but the ids of the keys are `{}`", ids.join("`, `")));
        }
    }

    fn check_admin(&mut self, read_file: ReadFile<'_>) {
        const FILES: [&str; 2] = ["admin.certificate_file", "admin.key_file"];
        for (path, other) in [(FILES[0], FILES[1]), (FILES[1], FILES[0])] {
            let Some(file) = self.settings.text(path).map(str::to_owned) else { continue };
            if self.settings.text(other).is_none() {
                self.report(path, format!("is set without `{other}`; set both, or neither"));
            } else if let Err(error) = read_file(&file) {
                self.report(path, format!("is `{file}`, which cannot be read ({error}); name a readable PEM file"));
            }
        }
    }

    /// The source must not contain the collections that pods write.
    fn check_reserved_collections(&mut self) {
        let needed = ["source.uri", "source.database", "source.collection", "source.collections", "coordination.uri"];
        let Config { source, source_uri, coordination, .. } = self.config;
        if !self.settings.are_valid(&needed)
            || !self.settings.are_valid(&["coordination.database"])
            || *source_uri != coordination.uri
        {
            return;
        }
        let captured = source.namespaces();
        let ours = |name: &&&str| captured.contains(&Namespace::new(&coordination.database, **name));
        let path = if source.collection.is_some() { "source.collection" } else { "source.collections" };
        let found: Vec<_> = reserved::COORDINATION_COLLECTIONS.iter().filter(ours).collect();
        for name in found {
            let what = format!(
                "is `{name}`, which pods write themselves in the coordination database; change `coordination.database`"
            );
            self.report(path, what);
        }
    }
}

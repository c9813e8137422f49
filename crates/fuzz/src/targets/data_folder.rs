//! The broker's data folder: damaged files, and records that nobody wrote.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use broker::core::{BrokerLimits, Core, Timestamp};
use broker::store::{Disk, DiskFile, LogStore, StoreOptions};
use broker::{Broker, Config, StorageLocation};

/// The files of a folder, in memory.
#[derive(Clone, Default)]
struct MemoryDisk(Arc<Mutex<BTreeMap<String, Arc<MemoryFile>>>>);

/// Written bytes; what is allocated beyond them reads as zeros.
#[derive(Default)]
struct MemoryFile(Mutex<(Vec<u8>, u64)>);

impl MemoryDisk {
    fn of(files: &BTreeMap<String, Vec<u8>>) -> Self {
        let file = |bytes: &Vec<u8>| Arc::new(MemoryFile(Mutex::new((bytes.clone(), bytes.len() as u64))));
        Self(Arc::new(Mutex::new(files.iter().map(|(name, bytes)| (name.clone(), file(bytes))).collect())))
    }

    fn files(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<MemoryFile>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Disk for MemoryDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files().keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = Arc::new(MemoryFile::default());
        self.files().insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.files().get(name).cloned().map(|file| file as Arc<dyn DiskFile>).ok_or_else(missing)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files();
        let file = files.remove(from).ok_or_else(missing)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files().remove(name).map(drop).ok_or_else(missing)
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _: &str) -> io::Result<Option<Box<dyn Any + Send>>> {
        Ok(Some(Box::new(())))
    }
}

impl MemoryFile {
    fn content(&self) -> std::sync::MutexGuard<'_, (Vec<u8>, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskFile for MemoryFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.content().1)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.content();
        let length = content.1.saturating_sub(offset).min(buf.len() as u64);
        let length = usize::try_from(length).map_err(io::Error::other)?;
        buf[..length].fill(0);
        let from = usize::try_from(offset).map_err(io::Error::other)?.min(content.0.len());
        let written = (content.0.len() - from).min(length);
        buf[..written].copy_from_slice(&content.0[from..from + written]);
        Ok(length)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut content = self.content();
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let end = from + bytes.len();
        if content.0.len() < end {
            content.0.resize(end, 0);
        }
        content.0[from..end].copy_from_slice(bytes);
        content.1 = content.1.max(end as u64);
        Ok(())
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        let mut content = self.content();
        content.1 = content.1.max(size);
        Ok(())
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        let mut content = self.content();
        let keep = usize::try_from(size).map_err(io::Error::other)?;
        content.0.truncate(keep);
        content.1 = size;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The files of a broker that has stored messages, a session state and an entity.
static GOOD_FOLDER: LazyLock<BTreeMap<String, Vec<u8>>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(fill_folder(folder.path()));
    let entries = std::fs::read_dir(folder.path()).expect("the folder");
    let mut files = BTreeMap::new();
    for entry in entries.flatten() {
        let mut bytes = std::fs::read(entry.path()).unwrap_or_default();
        // Allocated space at the end is zeros; a few are enough.
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        bytes.truncate((used + 64).min(bytes.len()));
        files.insert(entry.file_name().to_string_lossy().into_owned(), bytes);
    }
    files
});

async fn fill_folder(path: &std::path::Path) {
    let text = std::str::from_utf8(ENTITIES).expect("text");
    let entities = broker::emulator_config::parse(text).expect("the entities are valid").entities;
    let config = Config::new(SocketAddr::from(([127, 0, 0, 1], 0)), StorageLocation::Folder(path.to_owned()));
    let broker = Broker::start(Config { entities, ..config }).await.expect("a broker");
    let client = servicebus::Client::new(&broker.connection_string(), servicebus::Config::default()).expect("a client");
    let sender = client.sender("orders");
    for number in 0..20 {
        let message =
            servicebus::Message::new(format!("body {number}")).with_id(format!("m{number}")).with_session("s");
        sender.send_message(&message).await.expect("the broker accepts it");
    }
    let _ = client.close().await;
    broker.stop().await;
}

const ENTITIES: &[u8] = br#"{ "UserConfig": { "Namespaces": [ { "Name": "sbemulatorns", "Queues": [ { "Name": "orders", "Properties": { "RequiresSession": true } } ] } ], "Logging": { "Type": "File" } } }"#;

/// One damage: a file by number, a place, and a byte. The place beyond the end cuts or removes the file.
const DAMAGE: usize = 6;

pub(super) fn damages() -> Vec<Vec<u8>> {
    let one = |file: u8, at: u32, byte: u8| [&[file][..], &at.to_be_bytes(), &[byte]].concat();
    vec![
        vec![],
        one(0, 0, 0xff),
        one(1, 16, 1),
        one(2, 40, 0x80),
        [one(1, 4, 0), one(1, 100, 7)].concat(),
        one(1, u32::MAX, 0),
    ]
}

fn damaged(data: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = GOOD_FOLDER.clone();
    let names: Vec<_> = files.keys().cloned().collect();
    for damage in data.chunks_exact(DAMAGE) {
        let name = &names[usize::from(damage[0]) % names.len()];
        let at = u32::from_be_bytes([damage[1], damage[2], damage[3], damage[4]]) as usize;
        let Some(file) = files.get_mut(name) else { continue };
        match file.len() {
            length if at < length => file[at] = damage[5],
            0 => file.push(damage[5]),
            _ if damage[5] == 0 => drop(files.remove(name)),
            length => file.truncate(at % length),
        }
    }
    files
}

/// The folder is recovered, or refused with a reason.
pub(super) fn recover(data: &[u8]) {
    let disk = Arc::new(MemoryDisk::of(&damaged(data)));
    let options = StoreOptions { manual_io: true, ..StoreOptions::default() };
    let mut core = empty_core();
    let Ok(recovery) = LogStore::open(disk, options) else { return };
    let Ok(replayed) = recovery.replay(|meta, body| core.replay(meta, body)) else { return };
    if replayed.finish(|visit| core.visit_bodies(visit)).is_ok() {
        core.finish_recovery(Timestamp(1_800_000_000_000));
    }
}

fn empty_core() -> Core {
    Core::new(BrokerLimits::default(), [7; 32])
}

/// Every record of a good folder.
pub(super) fn records() -> Vec<Vec<u8>> {
    let disk = Arc::new(MemoryDisk::of(&GOOD_FOLDER));
    let mut records = vec![];
    let Ok(recovery) = LogStore::open(disk, StoreOptions { manual_io: true, ..StoreOptions::default() }) else {
        return records;
    };
    let _ = recovery.replay(|meta, _| {
        records.push(meta.to_vec());
        Ok::<_, std::convert::Infallible>(())
    });
    records
}

/// A record after the good ones, on its own and twice.
pub(super) fn replay_record(data: &[u8]) {
    let mut core = empty_core();
    let _ = core.replay(data, None);
    let location = broker::journal::JournalLocation { segment: 1, offset: 0, len: 9 };
    let _ = core.replay(data, Some(location));
    core.finish_recovery(Timestamp(1_800_000_000_000));
}

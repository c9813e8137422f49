//! A disk that loses unsynced writes.
//!
//! Every modifying operation is a *boundary*: the disk records a copy of itself in the middle of the operation.
//! [`SimulatedDisk::after_power_loss`] turns such a copy into a disk as a power cut could leave it.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use broker::store::{Disk, DiskFile};

/// A disk writes sectors atomically, in any order.
const SECTOR: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
enum ByteChange {
    Write { at: u64, bytes: Arc<[u8]> },
    Size(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum NameChange {
    Set { name: String, file: usize },
    Rename { from: String, to: String, file: usize },
    Remove { name: String },
}

#[derive(Debug, Clone, Default)]
struct Inode {
    /// What the process reads.
    seen: Vec<u8>,
    /// What survives every power cut.
    durable: Vec<u8>,
    /// What may or may not survive.
    unsynced: Vec<ByteChange>,
}

#[derive(Debug, Clone, Default)]
struct DiskImage {
    files: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
}

/// What a power cut does to unsynced writes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PowerLoss {
    /// Only the process ended: nothing is lost.
    Nothing,
    /// Everything unsynced is lost.
    Everything,
    /// A random selection of sectors and names survives.
    Torn(u64),
}

/// The kind of a sync, by what would be lost without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncKind {
    Format,
    FormatName,
    /// The first bytes of a piece, before it has its final name.
    NewPiece,
    PieceName,
    /// Bytes appended to a piece that has its final name.
    Piece,
    Snapshot,
    SnapshotName,
    Removal,
}

/// Returns an error for operations that should fail.
type DiskFault = Box<dyn FnMut(&str) -> Option<io::Error> + Send>;

#[derive(Default)]
struct DiskRules {
    ignored: Option<SyncKind>,
    fault: Option<DiskFault>,
    capacity: Option<u64>,
    record: bool,
    locked: bool,
}

/// A disk in the middle of an operation.
#[derive(Clone)]
pub(crate) struct WriteBoundary {
    image: DiskImage,
    /// The last value of [`SimulatedDisk::set_acknowledged`] at that time.
    pub(crate) acknowledged: u64,
    pub(crate) operation: String,
}

#[derive(Clone, Default)]
pub(crate) struct SimulatedDisk(Arc<SimulatedDiskState>);

#[derive(Default)]
struct SimulatedDiskState {
    image: Mutex<DiskImage>,
    rules: Mutex<DiskRules>,
    boundaries: Mutex<Vec<WriteBoundary>>,
    acknowledged: AtomicU64,
}

impl SimulatedDisk {
    pub(crate) fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Records a copy of the disk at every boundary from now on.
    pub(crate) fn record(&self) {
        self.rules().record = true;
    }

    pub(crate) fn boundaries(&self) -> Vec<WriteBoundary> {
        std::mem::take(&mut self.0.boundaries.lock().unwrap())
    }

    /// Stored with each following boundary.
    pub(crate) fn set_acknowledged(&self, value: u64) {
        self.0.acknowledged.store(value, Ordering::Relaxed);
    }

    /// Plants a defect: syncs of this kind report success and do nothing.
    pub(crate) fn ignore(&self, kind: SyncKind) {
        self.rules().ignored = Some(kind);
    }

    /// Calls `fault` before every operation, with a text such as `sync 00000000-0000.seg`.
    pub(crate) fn inject(&self, fault: impl FnMut(&str) -> Option<io::Error> + Send + 'static) {
        self.rules().fault = Some(Box::new(fault));
    }

    pub(crate) fn heal(&self) {
        self.rules().fault = None;
    }

    pub(crate) fn set_capacity(&self, bytes: Option<u64>) {
        self.rules().capacity = bytes;
    }

    pub(crate) fn used(&self) -> u64 {
        used(&self.image())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.image().names.keys().cloned().collect()
    }

    /// Changes the bytes of a file directly.
    pub(crate) fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut image = self.image();
        let file = image.names[name];
        let inode = &mut image.files[file];
        change(&mut inode.seen);
        inode.durable = inode.seen.clone();
        inode.unsynced.clear();
    }

    /// This disk after a power cut now.
    pub(crate) fn after(&self, loss: PowerLoss) -> Self {
        Self::of(after(&self.image(), loss))
    }

    /// The disk at a boundary, after a power cut there.
    pub(crate) fn after_power_loss(boundary: &WriteBoundary, loss: PowerLoss) -> Self {
        Self::of(after(&boundary.image, loss))
    }

    fn of(image: DiskImage) -> Self {
        let disk = Self::default();
        *disk.image() = image;
        disk
    }

    fn image(&self) -> MutexGuard<'_, DiskImage> {
        self.0.image.lock().unwrap()
    }

    fn rules(&self) -> MutexGuard<'_, DiskRules> {
        self.0.rules.lock().unwrap()
    }

    /// Records a boundary; `half` applies the first half of the operation to the copy.
    fn boundary(&self, operation: &str, half: impl FnOnce(&mut DiskImage)) -> io::Result<()> {
        let mut rules = self.rules();
        if let Some(error) = rules.fault.as_mut().and_then(|fault| fault(operation)) {
            return Err(error);
        }
        if rules.record {
            let mut image = self.image().clone();
            half(&mut image);
            let acknowledged = self.0.acknowledged.load(Ordering::Relaxed);
            let operation = operation.to_owned();
            self.0.boundaries.lock().unwrap().push(WriteBoundary { image, acknowledged, operation });
        }
        Ok(())
    }

    fn ignores(&self, kind: Option<SyncKind>) -> bool {
        kind.is_some() && self.rules().ignored == kind
    }

    fn check_room(&self, file: usize, size: u64) -> io::Result<()> {
        let Some(capacity) = self.rules().capacity else { return Ok(()) };
        let image = self.image();
        let grows = size.saturating_sub(image.files[file].seen.len() as u64);
        if grows > 0 && used(&image) + grows > capacity {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }
}

fn used(image: &DiskImage) -> u64 {
    image.names.values().map(|file| image.files[*file].seen.len() as u64).sum()
}

fn apply(bytes: &mut Vec<u8>, change: &ByteChange) {
    match change {
        ByteChange::Size(size) => bytes.resize(*size as usize, 0),
        ByteChange::Write { at, bytes: written } => {
            let end = *at as usize + written.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at as usize..end].copy_from_slice(written);
        }
    }
}

fn apply_name(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Set { name, file } => {
            names.insert(name.clone(), *file);
        }
        NameChange::Rename { from, to, file } => {
            names.remove(from);
            names.insert(to.clone(), *file);
        }
        NameChange::Remove { name } => {
            names.remove(name);
        }
    }
}

fn after(image: &DiskImage, loss: PowerLoss) -> DiskImage {
    let mut random = TestRandom::new(match loss {
        PowerLoss::Torn(seed) => seed,
        PowerLoss::Nothing | PowerLoss::Everything => 0,
    });
    let mut keep = || match loss {
        PowerLoss::Nothing => true,
        PowerLoss::Everything => false,
        PowerLoss::Torn(_) => random.below(2) == 0,
    };
    // A process that ends leaves the page cache intact; only a power cut shows what the disk has.
    if let PowerLoss::Nothing = loss {
        return image.clone();
    }
    let mut left = DiskImage { durable_names: image.durable_names.clone(), ..DiskImage::default() };
    for change in image.unsynced_names.iter().filter(|_| keep()) {
        apply_name(&mut left.durable_names, change);
    }
    for inode in &image.files {
        let mut durable = inode.durable.clone();
        for change in inode.unsynced.iter().flat_map(sectors).filter(|_| keep()) {
            apply(&mut durable, &change);
        }
        left.files.push(Inode { seen: durable.clone(), durable, unsynced: Vec::new() });
    }
    left.names = left.durable_names.clone();
    left
}

fn sectors(change: &ByteChange) -> Vec<ByteChange> {
    match change {
        ByteChange::Size(_) => vec![change.clone()],
        ByteChange::Write { at, bytes } => {
            let mut parts = Vec::new();
            let (mut at, mut rest) = (*at, &bytes[..]);
            while !rest.is_empty() {
                let length = rest.len().min(SECTOR - at as usize % SECTOR);
                parts.push(ByteChange::Write { at, bytes: rest[..length].into() });
                (at, rest) = (at + length as u64, &rest[length..]);
            }
            parts
        }
    }
}

impl Disk for SimulatedDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.boundary(&format!("create {name}"), |_| {})?;
        let mut image = self.image();
        image.files.push(Inode::default());
        let file = image.files.len() - 1;
        image.names.insert(name.to_owned(), file);
        image.unsynced_names.push(NameChange::Set { name: name.to_owned(), file });
        Ok(Arc::new(SimulatedFile { disk: self.clone(), file }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.image().names.get(name).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimulatedFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.boundary(&format!("rename {to}"), |_| {})?;
        let mut image = self.image();
        let file = image.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        image.names.insert(to.to_owned(), file);
        let change = NameChange::Rename { from: from.to_owned(), to: to.to_owned(), file };
        image.unsynced_names.push(change);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.boundary(&format!("remove {name}"), |_| {})?;
        let mut image = self.image();
        image.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        image.unsynced_names.push(NameChange::Remove { name: name.to_owned() });
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.boundary("sync folder", |_| {})?;
        let kind = self.image().unsynced_names.iter().rev().find_map(|change| match change {
            NameChange::Rename { to, .. } => match kind_of(to)? {
                SyncKind::Format => Some(SyncKind::FormatName),
                SyncKind::Snapshot => Some(SyncKind::SnapshotName),
                _ => Some(SyncKind::PieceName),
            },
            NameChange::Remove { .. } => Some(SyncKind::Removal),
            NameChange::Set { .. } => None,
        });
        if !self.ignores(kind) {
            let mut image = self.image();
            image.durable_names = image.names.clone();
            image.unsynced_names.clear();
        }
        Ok(())
    }

    fn lock(&self, _name: &str) -> io::Result<Option<Box<dyn Any + Send>>> {
        let taken = std::mem::replace(&mut self.rules().locked, true);
        Ok((!taken).then(|| Box::new(LockGuard(self.clone())) as Box<dyn Any + Send>))
    }
}

struct LockGuard(SimulatedDisk);

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.0.rules().locked = false;
    }
}

fn kind_of(name: &str) -> Option<SyncKind> {
    let (stem, temporary) = name.strip_suffix(".tmp").map_or((name, false), |stem| (stem, true));
    match stem {
        "format" => Some(SyncKind::Format),
        stem if stem.ends_with(".snapshot") => Some(SyncKind::Snapshot),
        stem if stem.ends_with(".seg") => Some(if temporary { SyncKind::NewPiece } else { SyncKind::Piece }),
        _ => None,
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    file: usize,
}

impl SimulatedFile {
    fn name(&self) -> String {
        let image = self.disk.image();
        image.names.iter().find(|(_, file)| **file == self.file).map_or_else(String::new, |(name, _)| name.clone())
    }

    fn change(&self, operation: &str, change: ByteChange) -> io::Result<()> {
        let size = match &change {
            ByteChange::Size(size) => *size,
            ByteChange::Write { at, bytes } => at + bytes.len() as u64,
        };
        self.disk.boundary(&format!("{operation} {}", self.name()), |image| {
            // Half-way through, the first half of the sectors is written.
            let parts = sectors(&change);
            image.files[self.file].unsynced.extend(parts[..parts.len() / 2].iter().cloned());
            let half: Vec<_> = parts[..parts.len() / 2].to_vec();
            half.iter().for_each(|part| apply(&mut image.files[self.file].seen, part));
        })?;
        self.disk.check_room(self.file, size)?;
        let mut image = self.disk.image();
        let inode = &mut image.files[self.file];
        apply(&mut inode.seen, &change);
        inode.unsynced.push(change);
        Ok(())
    }
}

impl DiskFile for SimulatedFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.image().files[self.file].seen.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let image = self.disk.image();
        let bytes = image.files[self.file].seen.get(offset as usize..).unwrap_or_default();
        let length = bytes.len().min(buf.len());
        buf[..length].copy_from_slice(&bytes[..length]);
        Ok(length)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.change("write", ByteChange::Write { at: offset, bytes: bytes.into() })
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.change("allocate", ByteChange::Size(size))
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.change("truncate", ByteChange::Size(size))
    }

    /// A failed sync drops the unsynced bytes, as a kernel does: the next sync succeeds without them.
    fn sync(&self) -> io::Result<()> {
        let name = self.name();
        let outcome = self.disk.boundary(&format!("sync {name}"), |_| {});
        if self.disk.ignores(kind_of(&name)) {
            return outcome;
        }
        let mut image = self.disk.image();
        let inode = &mut image.files[self.file];
        if outcome.is_ok() {
            // Only dirty bytes reach the disk.
            let mut durable = std::mem::take(&mut inode.durable);
            inode.unsynced.iter().for_each(|change| apply(&mut durable, change));
            inode.durable = durable;
        }
        inode.unsynced.clear();
        outcome
    }
}

/// A small deterministic random generator.
pub(crate) struct TestRandom(u64);

impl TestRandom {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

//! A disk that forgets what was not synced.
//!
//! Every operation that changes something is a *boundary*: a copy of the disk as it is in the middle of that operation is kept, and
//! [`SimDisk::after_power_loss`] makes of any such copy a disk as a power cut could have left it.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use broker::store::{Disk, DiskFile};

/// A disk writes these whole or not at all, in any order.
const SECTOR: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
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
    /// What the process sees.
    seen: Vec<u8>,
    /// What a power cut leaves, whatever happens.
    durable: Vec<u8>,
    /// What may or may not be left beside it.
    unsynced: Vec<Change>,
}

#[derive(Debug, Clone, Default)]
struct World {
    files: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
}

/// What a power cut does to what was not synced.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loss {
    /// The process died, the machine did not: nothing is lost.
    Nothing,
    /// Everything is lost.
    Everything,
    /// Some sectors and some names are kept, others not.
    Torn(u64),
}

/// Which kind of sync an operation is, by what would be lost without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncKind {
    Format,
    FormatName,
    /// The first bytes of a piece of a segment, before it has its name.
    NewPiece,
    PieceName,
    /// Bytes added to a piece that has its name.
    Piece,
    Snapshot,
    SnapshotName,
    Removal,
}

/// What the next operations of a kind answer.
type Fault = Box<dyn FnMut(&str) -> Option<io::Error> + Send>;

#[derive(Default)]
struct Rules {
    ignored: Option<SyncKind>,
    fault: Option<Fault>,
    capacity: Option<u64>,
    record: bool,
    locked: bool,
}

/// A disk in the middle of an operation.
#[derive(Clone)]
pub(crate) struct Boundary {
    world: World,
    /// What the test had noted when it happened, see [`SimDisk::note`].
    pub(crate) noted: u64,
    pub(crate) operation: String,
}

#[derive(Clone, Default)]
pub(crate) struct SimDisk(Arc<Inner>);

#[derive(Default)]
struct Inner {
    world: Mutex<World>,
    rules: Mutex<Rules>,
    boundaries: Mutex<Vec<Boundary>>,
    noted: AtomicU64,
}

impl SimDisk {
    pub(crate) fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Keeps a copy of the disk at every boundary from now on.
    pub(crate) fn record(&self) {
        self.rules().record = true;
    }

    pub(crate) fn boundaries(&self) -> Vec<Boundary> {
        std::mem::take(&mut self.0.boundaries.lock().unwrap())
    }

    /// Remembered with each boundary that follows.
    pub(crate) fn note(&self, value: u64) {
        self.0.noted.store(value, Ordering::Relaxed);
    }

    /// Plants a defect: syncs of this kind report success and do nothing.
    pub(crate) fn ignore(&self, kind: SyncKind) {
        self.rules().ignored = Some(kind);
    }

    /// Asks `fault` before every operation, by a text such as `sync 00000000-0000.seg`.
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
        used(&self.world())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.world().names.keys().cloned().collect()
    }

    /// Changes bytes of a file behind everybody's back.
    pub(crate) fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world();
        let file = world.names[name];
        let inode = &mut world.files[file];
        change(&mut inode.seen);
        inode.durable = inode.seen.clone();
        inode.unsynced.clear();
    }

    /// This disk as it is now, after a power cut.
    pub(crate) fn after(&self, loss: Loss) -> Self {
        Self::of(after(&self.world(), loss))
    }

    /// The disk as it was at a boundary, after a power cut there.
    pub(crate) fn after_power_loss(boundary: &Boundary, loss: Loss) -> Self {
        Self::of(after(&boundary.world, loss))
    }

    fn of(world: World) -> Self {
        let disk = Self::default();
        *disk.world() = world;
        disk
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.world.lock().unwrap()
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.0.rules.lock().unwrap()
    }

    /// A boundary: `half` is what a copy of the disk made half-way through has.
    fn boundary(&self, operation: &str, half: impl FnOnce(&mut World)) -> io::Result<()> {
        let mut rules = self.rules();
        if let Some(error) = rules.fault.as_mut().and_then(|fault| fault(operation)) {
            return Err(error);
        }
        if rules.record {
            let mut world = self.world().clone();
            half(&mut world);
            let noted = self.0.noted.load(Ordering::Relaxed);
            let operation = operation.to_owned();
            self.0.boundaries.lock().unwrap().push(Boundary { world, noted, operation });
        }
        Ok(())
    }

    fn ignores(&self, kind: Option<SyncKind>) -> bool {
        kind.is_some() && self.rules().ignored == kind
    }

    fn check_room(&self, file: usize, size: u64) -> io::Result<()> {
        let Some(capacity) = self.rules().capacity else { return Ok(()) };
        let world = self.world();
        let grows = size.saturating_sub(world.files[file].seen.len() as u64);
        if grows > 0 && used(&world) + grows > capacity {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }
}

fn used(world: &World) -> u64 {
    world.names.values().map(|file| world.files[*file].seen.len() as u64).sum()
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Size(size) => bytes.resize(*size as usize, 0),
        Change::Write { at, bytes: written } => {
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

fn after(world: &World, loss: Loss) -> World {
    let mut dice = Dice::new(match loss {
        Loss::Torn(seed) => seed,
        Loss::Nothing | Loss::Everything => 0,
    });
    let mut keep = || match loss {
        Loss::Nothing => true,
        Loss::Everything => false,
        Loss::Torn(_) => dice.below(2) == 0,
    };
    // A process that died leaves the page cache, lies and all; only a power cut shows what the disk has.
    if let Loss::Nothing = loss {
        return world.clone();
    }
    let mut left = World { durable_names: world.durable_names.clone(), ..World::default() };
    for change in world.unsynced_names.iter().filter(|_| keep()) {
        apply_name(&mut left.durable_names, change);
    }
    for inode in &world.files {
        let mut durable = inode.durable.clone();
        for change in inode.unsynced.iter().flat_map(sectors).filter(|_| keep()) {
            apply(&mut durable, &change);
        }
        left.files.push(Inode { seen: durable.clone(), durable, unsynced: Vec::new() });
    }
    left.names = left.durable_names.clone();
    left
}

fn sectors(change: &Change) -> Vec<Change> {
    match change {
        Change::Size(_) => vec![change.clone()],
        Change::Write { at, bytes } => {
            let mut parts = Vec::new();
            let (mut at, mut rest) = (*at, &bytes[..]);
            while !rest.is_empty() {
                let length = rest.len().min(SECTOR - at as usize % SECTOR);
                parts.push(Change::Write { at, bytes: rest[..length].into() });
                (at, rest) = (at + length as u64, &rest[length..]);
            }
            parts
        }
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.boundary(&format!("create {name}"), |_| {})?;
        let mut world = self.world();
        world.files.push(Inode::default());
        let file = world.files.len() - 1;
        world.names.insert(name.to_owned(), file);
        world.unsynced_names.push(NameChange::Set { name: name.to_owned(), file });
        Ok(Arc::new(SimFile { disk: self.clone(), file }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.world().names.get(name).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.boundary(&format!("rename {to}"), |_| {})?;
        let mut world = self.world();
        let file = world.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        world.names.insert(to.to_owned(), file);
        let change = NameChange::Rename { from: from.to_owned(), to: to.to_owned(), file };
        world.unsynced_names.push(change);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.boundary(&format!("remove {name}"), |_| {})?;
        let mut world = self.world();
        world.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        world.unsynced_names.push(NameChange::Remove { name: name.to_owned() });
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.boundary("sync folder", |_| {})?;
        let kind = self.world().unsynced_names.iter().rev().find_map(|change| match change {
            NameChange::Rename { to, .. } => match kind_of(to)? {
                SyncKind::Format => Some(SyncKind::FormatName),
                SyncKind::Snapshot => Some(SyncKind::SnapshotName),
                _ => Some(SyncKind::PieceName),
            },
            NameChange::Remove { .. } => Some(SyncKind::Removal),
            NameChange::Set { .. } => None,
        });
        if !self.ignores(kind) {
            let mut world = self.world();
            world.durable_names = world.names.clone();
            world.unsynced_names.clear();
        }
        Ok(())
    }

    fn lock(&self, _name: &str) -> io::Result<Option<Box<dyn Any + Send>>> {
        let taken = std::mem::replace(&mut self.rules().locked, true);
        Ok((!taken).then(|| Box::new(Unlock(self.clone())) as Box<dyn Any + Send>))
    }
}

struct Unlock(SimDisk);

impl Drop for Unlock {
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

struct SimFile {
    disk: SimDisk,
    file: usize,
}

impl SimFile {
    fn name(&self) -> String {
        let world = self.disk.world();
        world.names.iter().find(|(_, file)| **file == self.file).map_or_else(String::new, |(name, _)| name.clone())
    }

    fn change(&self, operation: &str, change: Change) -> io::Result<()> {
        let size = match &change {
            Change::Size(size) => *size,
            Change::Write { at, bytes } => at + bytes.len() as u64,
        };
        self.disk.boundary(&format!("{operation} {}", self.name()), |world| {
            // Half-way through, the first half of the sectors has been asked for.
            let parts = sectors(&change);
            world.files[self.file].unsynced.extend(parts[..parts.len() / 2].iter().cloned());
            let half: Vec<_> = parts[..parts.len() / 2].to_vec();
            half.iter().for_each(|part| apply(&mut world.files[self.file].seen, part));
        })?;
        self.disk.check_room(self.file, size)?;
        let mut world = self.disk.world();
        let inode = &mut world.files[self.file];
        apply(&mut inode.seen, &change);
        inode.unsynced.push(change);
        Ok(())
    }
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.world().files[self.file].seen.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let world = self.disk.world();
        let bytes = world.files[self.file].seen.get(offset as usize..).unwrap_or_default();
        let length = bytes.len().min(buf.len());
        buf[..length].copy_from_slice(&bytes[..length]);
        Ok(length)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.change("write", Change::Write { at: offset, bytes: bytes.into() })
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.change("allocate", Change::Size(size))
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.change("truncate", Change::Size(size))
    }

    /// A sync that fails drops what was unsynced and remembers nothing of it, as a kernel does: the next one succeeds.
    fn sync(&self) -> io::Result<()> {
        let name = self.name();
        let outcome = self.disk.boundary(&format!("sync {name}"), |_| {});
        if self.disk.ignores(kind_of(&name)) {
            return outcome;
        }
        let mut world = self.disk.world();
        let inode = &mut world.files[self.file];
        if outcome.is_ok() {
            // Only what is still dirty reaches the disk.
            let mut durable = std::mem::take(&mut inode.durable);
            inode.unsynced.iter().for_each(|change| apply(&mut durable, change));
            inode.durable = durable;
        }
        inode.unsynced.clear();
        outcome
    }
}

/// Small, repeatable chance.
pub(crate) struct Dice(u64);

impl Dice {
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

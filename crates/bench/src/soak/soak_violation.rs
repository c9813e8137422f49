//! The kinds of guarantees that a soak can find broken.

use std::collections::BTreeSet;
use std::fmt;

use testkit::checker::{CheckReport, ViolationKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SoakViolation {
    Lost,
    Duplicated,
    OutOfOrder,
    Unexpected,
    Altered,
    /// A deposed leader saved the checkpoint.
    FenceBreached,
    /// A read model differs from a fold of the source.
    ReadModelDiffers,
    /// Other events are parked than the run poisoned.
    WronglyParked,
    /// Something is left in the pipeline, and it makes no progress.
    Stalled,
    /// A reader of the topic got an error that no fault explains.
    ReaderError,
    /// A term did not rise, or the checkpoint moved back.
    WentBack,
    /// `read-model verify` found differences in a read model that is right.
    FalseAlarm,
    /// A command of an operator crashed or did not end.
    CommandCrashed,
    /// A pod exited on its own.
    PodExited,
}

impl SoakViolation {
    /// The kinds in the check of a history.
    pub(super) fn of_history(report: &CheckReport) -> BTreeSet<Self> {
        ViolationKind::ALL.into_iter().filter(|kind| report.count(*kind) > 0).map(Self::from).collect()
    }
}

impl From<ViolationKind> for SoakViolation {
    fn from(kind: ViolationKind) -> Self {
        match kind {
            ViolationKind::Lost => Self::Lost,
            ViolationKind::Duplicated => Self::Duplicated,
            ViolationKind::OutOfOrder => Self::OutOfOrder,
            ViolationKind::Unexpected => Self::Unexpected,
            ViolationKind::Altered => Self::Altered,
        }
    }
}

impl fmt::Display for SoakViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lost",
            Self::Duplicated => "duplicated",
            Self::OutOfOrder => "out of order",
            Self::Unexpected => "unexpected",
            Self::Altered => "altered",
            Self::FenceBreached => "fence breached",
            Self::ReadModelDiffers => "read model differs",
            Self::WronglyParked => "wrongly parked",
            Self::Stalled => "stalled",
            Self::ReaderError => "reader error",
            Self::WentBack => "went back",
            Self::FalseAlarm => "false alarm",
            Self::CommandCrashed => "command crashed",
            Self::PodExited => "pod exited",
        })
    }
}

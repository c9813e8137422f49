//! Read models over time: which definitions the pods apply, and how a new one is built and switched on.
//!
//! The store holds the declarations that all pods apply, as a [`Generation`]. Its number rises with every change, and every cursor says up to which
//! generation its position holds. A change has three stages, each with a number of its own or the one before it:
//!
//! 1. *Building*: pods apply live events to the new versions, too, but only for aggregates that a [`Builder`] has built from the source, or that are
//!    new. New versions write collections of their own.
//! 2. *Switching*: the [fence](raise_fence) refuses every transaction of an earlier generation, and pods of this one wait. The new collections are
//!    renamed.
//! 3. *Active*: pods go on.
//!
//! Two mechanisms keep pods apart. A cursor that a pod of a later generation wrote is refused by an earlier pod before it applies anything. And the
//! fence, a validator of the cursor collection, makes the server refuse what an earlier pod writes, and versions of Headwater without generations.

mod builder;
mod cursor_walk;
mod document;
mod error;
mod fence;
mod store;
mod switch;

pub use builder::{BuildDependencies, BuildOptions, BuildPause, BuildProgressReport, BuildTotals, Builder};
pub use document::{
    ChangeRequest, Generation, GenerationStage, IncompleteReason, ModelVersion, RequestKind, VersionState,
};
pub use error::Error;
pub use fence::raise_fence;
pub use store::{GENERATIONS, GenerationStore};
pub use switch::{
    carry_discards, complete_switch, create_unique_indexes, drop_builds, free_space_problem, prepare_build,
    record_built_collections,
};

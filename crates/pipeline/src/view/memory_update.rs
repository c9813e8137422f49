//! Pure: applies the update document of an event type to a document in memory, exactly as the server would, or refuses.
//!
//! A build folds an aggregate with it: one insert takes the place of an update per event. It knows the operators and values of which it knows the
//! result to the byte. Everything else, every conflict and every error is left to the server ([`NeedsServer`]): it alone decides what is applied and
//! what is parked.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, RawBson, RawBsonRef, RawDocument};

use super::identity::Identity;
use super::template::TemplateNode;
use super::value_position::ValuePosition;

/// The update of one event type.
#[derive(Debug)]
pub(super) struct MemoryUpdate {
    /// In the order in which the server changes fields: by path, whatever the operator.
    changes: Vec<FieldChange>,
}

/// A document that is folded in memory; `None` if there is none.
#[derive(Debug, Default)]
pub(super) struct FoldedDocument {
    pub(super) document: Option<Document>,
    sets: SetIndexes,
}

/// By path: the elements of a large list to which `$addToSet` adds. A list that another operator may have changed has no entry.
type SetIndexes = HashMap<Vec<String>, HashSet<Identity>>;

impl FoldedDocument {
    pub(super) fn delete(&mut self) {
        *self = Self::default();
    }

    fn forget_sets(&mut self, path: &[String]) {
        if !self.sets.is_empty() {
            self.sets.retain(|list, _| !list.starts_with(path) && !path.starts_with(list));
        }
    }
}

/// Only the server knows the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeedsServer;

#[derive(Debug)]
struct FieldChange {
    path: Vec<String>,
    operator: UpdateOperator,
    operand: TemplateNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpdateOperator {
    Set,
    SetOnInsert,
    Unset,
    Inc,
    Min,
    Max,
    Push,
    AddToSet,
}

/// Searching a list of so many elements is faster than an index of it.
const SMALL_SET: usize = 16;
/// Deeper values are rare; the server has a limit of its own.
const MAX_DEPTH: usize = 30;
const EACH: &str = "$each";

impl MemoryUpdate {
    /// `None`: it has an operator or a path that is left to the server.
    pub(super) fn compile(update: &TemplateNode) -> Option<Self> {
        let mut changes = vec![];
        for (operator, fields) in fields_of(update)? {
            let operator = UpdateOperator::parse(&operator)?;
            for (path, operand) in fields_of(&fields)? {
                changes.push(FieldChange { path: parse_path(&path)?, operator, operand });
            }
        }
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        // The server refuses two changes of one field, or of a field and a part of it.
        let has_conflict = changes.windows(2).any(|pair| pair[1].path.starts_with(&pair[0].path));
        (!has_conflict).then_some(Self { changes })
    }

    /// A missing document is created with this `_id`. After an error its content is undefined.
    pub(super) fn apply(&self, folded: &mut FoldedDocument, id: &Bson, event: &RawDocument) -> Result<(), NeedsServer> {
        let is_insert = folded.document.is_none();
        if is_insert {
            folded.document = Some(Document::from_iter([("_id".to_owned(), check_id(id)?)]));
        }
        for change in &self.changes {
            if change.operator == UpdateOperator::SetOnInsert && !is_insert {
                continue;
            }
            change.apply(folded, event)?;
        }
        Ok(())
    }
}

impl UpdateOperator {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "$set" => Self::Set,
            "$setOnInsert" => Self::SetOnInsert,
            "$unset" => Self::Unset,
            "$inc" => Self::Inc,
            "$min" => Self::Min,
            "$max" => Self::Max,
            "$push" => Self::Push,
            "$addToSet" => Self::AddToSet,
            _ => return None,
        })
    }
}

impl FieldChange {
    fn apply(&self, folded: &mut FoldedDocument, event: &RawDocument) -> Result<(), NeedsServer> {
        // A value that the event does not have is left out with its field.
        match &self.operand {
            TemplateNode::Literal(literal) => self.change(folded, literal.as_raw_bson_ref()),
            TemplateNode::Event(path, ValuePosition::Stored) => match path.find(event) {
                Some(value) => self.change(folded, value.as_ref()),
                None => Ok(()),
            },
            node => match node.render(event).map_err(|_| NeedsServer)? {
                Some(value) => self.change(folded, value.as_raw_bson_ref()),
                None => Ok(()),
            },
        }
    }

    fn change(&self, folded: &mut FoldedDocument, operand: RawBsonRef<'_>) -> Result<(), NeedsServer> {
        if self.operator != UpdateOperator::AddToSet {
            folded.forget_sets(&self.path);
        }
        let FoldedDocument { document, sets } = folded;
        let document = document.as_mut().ok_or(NeedsServer)?;
        let (last, parents) = self.path.split_last().ok_or(NeedsServer)?;
        let Some(parent) = find_parent(document, parents, self.operator != UpdateOperator::Unset)? else {
            return Ok(());
        };
        if self.operator == UpdateOperator::Unset {
            parent.remove(last);
            return Ok(());
        }
        if self.operator == UpdateOperator::AddToSet {
            let list = parent.entry(last.clone()).or_insert_with(|| Bson::Array(vec![]));
            let Bson::Array(values) = list else { return Err(NeedsServer) };
            add_to_set(values, list_operand(operand)?, sets, &self.path);
            return Ok(());
        }
        match parent.get_mut(last) {
            Some(stored) => self.operator.change(stored, operand),
            None => {
                parent.insert(last.clone(), self.operator.first_value(operand)?);
                Ok(())
            }
        }
    }
}

impl UpdateOperator {
    /// The value of a field that did not exist.
    fn first_value(self, operand: RawBsonRef<'_>) -> Result<Bson, NeedsServer> {
        match self {
            Self::Set | Self::SetOnInsert | Self::Min | Self::Max => to_plain(operand, 0),
            Self::Inc => {
                let amount = to_plain(operand, 0)?;
                if is_number(&amount) { Ok(amount) } else { Err(NeedsServer) }
            }
            Self::Push => list_operand(operand).map(Bson::Array),
            // Changed where the document is known.
            Self::AddToSet | Self::Unset => Err(NeedsServer),
        }
    }

    fn change(self, stored: &mut Bson, operand: RawBsonRef<'_>) -> Result<(), NeedsServer> {
        match (self, &mut *stored) {
            (Self::Push, Bson::Array(values)) => values.extend(list_operand(operand)?),
            (Self::Push | Self::AddToSet | Self::Unset, _) => return Err(NeedsServer),
            (Self::Set | Self::SetOnInsert, stored) => *stored = to_plain(operand, 0)?,
            (Self::Inc, stored) => *stored = add(stored, &to_plain(operand, 0)?)?,
            (Self::Min | Self::Max, stored) => {
                let value = to_plain(operand, 0)?;
                let replaces = if self == Self::Min { Ordering::Less } else { Ordering::Greater };
                if compare(&value, stored)? == replaces {
                    *stored = value;
                }
            }
        }
        Ok(())
    }
}

/// The fields of a document of the template, each with its value.
fn fields_of(node: &TemplateNode) -> Option<Vec<(String, TemplateNode)>> {
    match node {
        TemplateNode::Document(fields) => {
            Some(fields.iter().map(|(name, node)| (name.as_str().to_owned(), node.clone())).collect())
        }
        TemplateNode::Literal(RawBson::Document(document)) => {
            let field = |(name, value): (&mongodb::bson::raw::CStr, RawBsonRef<'_>)| {
                (name.as_str().to_owned(), TemplateNode::Literal(value.into()))
            };
            document.iter().map(|element| element.ok().map(field)).collect()
        }
        _ => None,
    }
}

/// A part of digits may be the index of a list, and one with `$` an operator.
fn parse_path(path: &str) -> Option<Vec<String>> {
    let is_plain =
        |part: &str| !part.is_empty() && !part.starts_with('$') && !part.bytes().all(|byte| byte.is_ascii_digit());
    path.split('.').map(|part| is_plain(part).then(|| part.to_owned())).collect()
}

/// The document that has the field. Missing ones are created on request, else there is `None`.
fn find_parent<'a>(
    document: &'a mut Document,
    parents: &[String],
    creates: bool,
) -> Result<Option<&'a mut Document>, NeedsServer> {
    let mut parent = document;
    for name in parents {
        if !parent.contains_key(name) {
            if !creates {
                return Ok(None);
            }
            parent.insert(name.clone(), Document::new());
        }
        match parent.get_mut(name) {
            Some(Bson::Document(found)) => parent = found,
            _ => return Err(NeedsServer),
        }
    }
    Ok(Some(parent))
}

/// The `_id` that an upsert would give the document.
fn check_id(id: &Bson) -> Result<Bson, NeedsServer> {
    match id {
        Bson::String(_)
        | Bson::Int32(_)
        | Bson::Int64(_)
        | Bson::ObjectId(_)
        | Bson::Boolean(_)
        | Bson::DateTime(_) => Ok(id.clone()),
        Bson::Binary(Binary { subtype: BinarySubtype::Generic | BinarySubtype::Uuid, .. }) => Ok(id.clone()),
        _ => Err(NeedsServer),
    }
}

/// The values that `$push` and `$addToSet` add.
fn list_operand(operand: RawBsonRef<'_>) -> Result<Vec<Bson>, NeedsServer> {
    if let RawBsonRef::Document(modifiers) = operand
        && let Some(RawBsonRef::Array(values)) = modifiers.get(EACH).ok().flatten()
    {
        // `$slice`, `$sort` and `$position` are left to the server.
        if modifiers.iter().count() != 1 {
            return Err(NeedsServer);
        }
        return values.into_iter().map(|value| to_plain(value.map_err(|_| NeedsServer)?, 1)).collect();
    }
    to_plain(operand, 1).map(|value| vec![value])
}

/// In time that does not grow with the list.
fn add_to_set(values: &mut Vec<Bson>, added: Vec<Bson>, sets: &mut SetIndexes, path: &[String]) {
    let is_small = values.len() + added.len() <= SMALL_SET;
    if is_small && !sets.contains_key(path) {
        return add_to_small_set(values, added);
    }
    let index = match sets.get_mut(path) {
        Some(index) => index,
        None => sets.entry(path.to_vec()).or_insert(values.iter().map(Identity::of).collect()),
    };
    values.extend(added.into_iter().filter(|value| index.insert(Identity::of(value))));
}

fn add_to_small_set(values: &mut Vec<Bson>, added: Vec<Bson>) {
    for value in added {
        let identity = Identity::of(&value);
        let is_known = values.iter().any(|known| match (known, &value) {
            (Bson::String(known), Bson::String(value)) => known == value,
            (known, _) => Identity::of(known) == identity,
        });
        if !is_known {
            values.push(value);
        }
    }
}

fn is_number(value: &Bson) -> bool {
    matches!(value, Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_))
}

/// 32-bit integers grow into 64-bit ones; those do not grow any further.
fn add(stored: &Bson, amount: &Bson) -> Result<Bson, NeedsServer> {
    if let (Bson::Int32(one), Bson::Int32(other)) = (stored, amount) {
        let sum = || Bson::Int64(i64::from(*one) + i64::from(*other));
        return Ok(one.checked_add(*other).map_or_else(sum, Bson::Int32));
    }
    if let (Some(one), Some(other)) = (integer(stored), integer(amount)) {
        return one.checked_add(other).map(Bson::Int64).ok_or(NeedsServer);
    }
    let sum = double(stored).zip(double(amount)).map(|(one, other)| one + other);
    sum.filter(|sum| !sum.is_nan()).map(Bson::Double).ok_or(NeedsServer)
}

fn integer(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        _ => None,
    }
}

fn double(value: &Bson) -> Option<f64> {
    match value {
        Bson::Double(number) => Some(*number),
        other => integer(other).map(|number| number as f64),
    }
}

/// Only of values of one kind.
fn compare(one: &Bson, other: &Bson) -> Result<Ordering, NeedsServer> {
    match (one, other) {
        (Bson::Double(one), Bson::Double(other)) => one.partial_cmp(other).ok_or(NeedsServer),
        (Bson::String(one), Bson::String(other)) => Ok(one.as_bytes().cmp(other.as_bytes())),
        (Bson::DateTime(one), Bson::DateTime(other)) => Ok(one.cmp(other)),
        (one, other) => integer(one).zip(integer(other)).map(|(one, other)| one.cmp(&other)).ok_or(NeedsServer),
    }
}

/// A value that the server stores as it is, in an update as in an insert.
fn to_plain(value: RawBsonRef<'_>, depth: usize) -> Result<Bson, NeedsServer> {
    if depth > MAX_DEPTH {
        return Err(NeedsServer);
    }
    Ok(match value {
        RawBsonRef::Document(document) => {
            let mut plain = Document::new();
            for element in document {
                let (name, value) = element.map_err(|_| NeedsServer)?;
                let name = name.as_str();
                let is_plain = !name.is_empty() && !name.starts_with('$') && !name.contains('.');
                // A name that comes twice would lose its first value.
                if !is_plain || plain.insert(name, to_plain(value, depth + 1)?).is_some() {
                    return Err(NeedsServer);
                }
            }
            Bson::Document(plain)
        }
        RawBsonRef::Array(values) => {
            let plain = values.into_iter().map(|value| to_plain(value.map_err(|_| NeedsServer)?, depth + 1));
            Bson::Array(plain.collect::<Result<_, _>>()?)
        }
        RawBsonRef::Double(number) if number.is_nan() => return Err(NeedsServer),
        RawBsonRef::Binary(binary) if !matches!(binary.subtype, BinarySubtype::Generic | BinarySubtype::Uuid) => {
            return Err(NeedsServer);
        }
        RawBsonRef::Double(_)
        | RawBsonRef::String(_)
        | RawBsonRef::Binary(_)
        | RawBsonRef::ObjectId(_)
        | RawBsonRef::Boolean(_)
        | RawBsonRef::DateTime(_)
        | RawBsonRef::Null
        | RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Decimal128(_) => Bson::try_from(value).map_err(|_| NeedsServer)?,
        _ => return Err(NeedsServer),
    })
}

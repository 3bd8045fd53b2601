//! Reads safetensors files tensor by tensor. A header is checked against the file and the request before memory is allocated.

use super::json::read_text;
use super::{Error, Result, WeightDtype as Precision};
use crate::activity::{ProgressTask, ProgressUnit};
use crate::config::{files, json, printable, printable_path};
use crate::ops;
use candle_core::{DType, Tensor};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

/// Maximum number of bytes of a name that an error quotes.
const SHOWN: usize = 200;

/// Files of a model or an adapter, and their tensors that have not been taken yet.
pub(super) struct SafetensorsReader {
    files: Vec<SafetensorsFile>,
    /// The file and header entry of each tensor, by name.
    tensors: HashMap<String, (usize, TensorInfo)>,
    /// Counts the bytes of taken tensors.
    task: Option<ProgressTask>,
}

struct SafetensorsFile {
    path: PathBuf,
    file: File,
    /// Offset of the values.
    begin: u64,
}

#[derive(Deserialize)]
struct WeightMapIndex {
    weight_map: HashMap<String, String>,
}

impl SafetensorsReader {
    fn empty() -> Self {
        Self { files: Vec::new(), tensors: HashMap::new(), task: None }
    }

    /// Counts the bytes of tensors that are taken from now on, until the reader is dropped.
    pub(super) fn counted_by(self, task: ProgressTask) -> Self {
        let bytes = self.tensors.values().map(|(_, info)| (info.data_offsets.1 - info.data_offsets.0) as u64);
        let task = task.with_total(bytes.sum::<u64>(), ProgressUnit::Bytes);
        Self { task: Some(task), ..self }
    }

    fn count(&self, bytes: usize) {
        self.task.iter().for_each(|task| task.add(bytes as u64));
    }

    /// Opens one file.
    pub(super) fn open_file(path: &Path) -> Result<Self> {
        let mut this = Self::empty();
        this.add(path)?;
        Ok(this)
    }

    /// Opens the files of a model's folder: the single file if there is one, else several with an index. As in transformers, a single file
    /// needs no index, but an index that is present must be valid.
    ///
    /// # Errors
    /// If a file is missing, not a regular file, damaged, or outside the folder according to the index, or if two files have a tensor of
    /// the same name.
    pub(super) fn open_model(folder: &Path) -> Result<Self> {
        let (index, single) = (folder.join("model.safetensors.index.json"), folder.join("model.safetensors"));
        let Some(text) = read_text(&index)? else { return Self::open_file(&single) };
        let wrong = |detail: String| Error::Weights { path: index.clone(), detail };
        let parsed: serde_json::Result<WeightMapIndex> = json::value(&text).and_then(serde_json::from_value);
        let parsed = parsed.map_err(|e| wrong(format!("not an index of shards: {}", printable(&e.to_string(), 2 * SHOWN))))?;
        let names: BTreeSet<&String> = parsed.weight_map.values().collect();
        let is_inside = |name: &str| Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if let Some(name) = names.iter().find(|name| name.is_empty() || name.contains('\\') || !is_inside(name)) {
            let name = printable(name, SHOWN);
            return Err(wrong(format!(
                "names the file {name:?}, which is outside the folder; shards must be beside their index"
            )));
        }
        if single.is_file() {
            return Self::open_file(&single);
        }
        let mut this = Self::empty();
        names.into_iter().try_for_each(|name| this.add(&folder.join(name)))?;
        Ok(this)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let mut file = files::open(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Error::Missing { path: path.to_owned() },
            _ => Error::Io { path: path.to_owned(), source },
        })?;
        let (begin, header) = header(&mut file).map_err(|e| match e {
            SafetensorsHeaderError::Io(source) => Error::Io { path: path.to_owned(), source },
            SafetensorsHeaderError::Damaged(detail) => {
                let detail = printable(&detail, 2 * SHOWN);
                Error::Weights { path: path.to_owned(), detail: format!("not a readable safetensors file: {detail}") }
            }
        })?;
        // Within a file, tied weights may have one name or several; no two files may have the same name.
        if let Some(name) = header.offset_keys().into_iter().find(|name| self.tensors.contains_key(name)) {
            let first = self.tensors.get(&name).map(|(file, _)| printable_path(&self.files[*file].path)).unwrap_or_default();
            let name = printable(&name, SHOWN);
            let detail = format!("has {name}, and so has {first}; only one shard may have a tensor");
            return Err(Error::Weights { path: path.to_owned(), detail });
        }
        let number = self.files.len();
        self.tensors.extend(header.tensors().into_iter().map(|(name, info)| (name, (number, info.clone()))));
        self.files.push(SafetensorsFile { path: path.to_owned(), file, begin });
        Ok(())
    }

    /// Returns whether a tensor of this name exists.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns whether a tensor exists. `by` names the source of the shape.
    ///
    /// # Errors
    /// If the tensor has another shape or an unsupported type.
    pub(super) fn check(&self, name: &str, shape: &[usize], by: &str) -> Result<bool> {
        let Some((file, info)) = self.tensors.get(name) else { return Ok(false) };
        let wrong = |detail: String| Err(Error::Weights { path: self.files[*file].path.clone(), detail });
        if info.shape != shape {
            let has = printable(&format!("{:?}", info.shape), SHOWN);
            return wrong(format!("{name} has shape {has}; by {by} it must have {shape:?}"));
        }
        if dtype(info.dtype).is_none() {
            return wrong(format!("{name} has type {:?}; f32, f16 and bf16 are supported", info.dtype));
        }
        Ok(true)
    }

    /// Returns whether a byte tensor of this name exists, such as packed weights. `by` names the source of the shape.
    ///
    /// # Errors
    /// If the tensor has another shape.
    pub(super) fn has_bytes(&self, name: &str, shape: &[usize], by: &str) -> Result<bool> {
        let Some((file, info)) = self.tensors.get(name) else { return Ok(false) };
        if info.shape == shape && info.dtype == Dtype::U8 {
            return Ok(true);
        }
        let has = printable(&format!("{:?} of {:?}", info.shape, info.dtype), SHOWN);
        let detail = format!("{name} has shape {has}; by {by} it must have {shape:?} of U8");
        Err(Error::Weights { path: self.files[*file].path.clone(), detail })
    }

    /// Takes the byte tensor of this name, or returns `None` if there is none.
    ///
    /// # Errors
    /// As [`SafetensorsReader::has_bytes`].
    pub(super) fn take_bytes(&mut self, name: &str, shape: &[usize], by: &str) -> Result<Option<Vec<u8>>> {
        if !self.has_bytes(name, shape, by)? {
            return Ok(None);
        }
        let Some((file, info)) = self.tensors.remove(name) else { return Ok(None) };
        let (shard, (from, to)) = (&mut self.files[file], info.data_offsets);
        let io = |source| Error::Io { path: shard.path.clone(), source };
        shard.file.seek(SeekFrom::Start(shard.begin + from as u64)).map_err(io)?;
        let mut bytes = vec![0; to - from];
        shard.file.read_exact(&mut bytes).map_err(io)?;
        self.count(bytes.len());
        Ok(Some(bytes))
    }

    /// Returns the error for a tensor with values that are not finite.
    pub(super) fn damaged(folder: &Path, name: &str) -> Error {
        let detail = format!("{name} has infinite or NaN values; the model itself is damaged, get an intact copy");
        Error::Weights { path: folder.to_owned(), detail }
    }

    /// Takes the tensor of this name as f32, or returns `None` if there is none.
    ///
    /// # Errors
    /// As [`SafetensorsReader::check`]; and if a value is not finite.
    pub(super) fn take(&mut self, name: &str, shape: &[usize], by: &str) -> Result<Option<Tensor>> {
        self.take_in(name, shape, by, Some(Precision::F32))
    }

    /// Takes a tensor in the given precision, or else in the stored one. Vectors are f32.
    ///
    /// # Errors
    /// As [`SafetensorsReader::take`]; and if a value does not fit the precision.
    pub(super) fn take_in(
        &mut self,
        name: &str,
        shape: &[usize],
        by: &str,
        precision: Option<Precision>,
    ) -> Result<Option<Tensor>> {
        if !self.check(name, shape, by)? {
            return Ok(None);
        }
        let Some((file, info)) = self.tensors.remove(name) else { return Ok(None) };
        let Some(dtype) = dtype(info.dtype) else { return Ok(None) };
        let shard = &mut self.files[file];
        let io = |source| Error::Io { path: shard.path.clone(), source };
        let (from, to) = info.data_offsets;
        shard.file.seek(SeekFrom::Start(shard.begin + from as u64)).map_err(io)?;
        let precision = if shape.len() < 2 { Precision::F32 } else { precision.unwrap_or(Precision::from_candle(dtype)) };
        let mut bytes = (&shard.file).take((to - from) as u64);
        let values = ops::read_tensor(&mut bytes, dtype, shape, precision.candle()).map_err(io)?;
        if !ops::all_finite(&values)? {
            if precision == Precision::F16 && dtype != DType::F16 {
                return Err(Error::OutOfRange { path: shard.path.clone(), tensor: name.to_owned(), dtype: precision.name() });
            }
            return Err(Self::damaged(&shard.path, name));
        }
        self.count(to - from);
        Ok(Some(values))
    }

    /// Returns the precision of the matrices, if all have the same.
    pub(super) fn stored_in(&self) -> Option<Precision> {
        let matrices = self.tensors.values().filter(|(_, info)| info.shape.len() > 1);
        let mut all = matrices.map(|(_, info)| dtype(info.dtype).map(Precision::from_candle));
        let first = all.next()??;
        all.all(|one| one == Some(first)).then_some(first)
    }

    /// Renames all tensors.
    pub(super) fn renamed(mut self, rename: impl Fn(&str) -> String) -> Self {
        self.tensors = self.tensors.into_iter().map(|(name, place)| (rename(&name), place)).collect();
        self
    }

    /// Marks a tensor as taken.
    pub(super) fn forget(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    /// Returns the first name of a tensor that was not taken, made printable.
    pub(super) fn left(&self) -> Option<String> {
        self.left_except(|_| false)
    }

    /// Returns the first name of a tensor that was not taken and is not excepted, made printable.
    pub(super) fn left_except(&self, except: impl Fn(&str) -> bool) -> Option<String> {
        self.tensors.keys().filter(|name| !except(name)).min().map(|name| printable(name, SHOWN))
    }
}

fn dtype(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        _ => None,
    }
}

enum SafetensorsHeaderError {
    Io(std::io::Error),
    Damaged(String),
}

impl From<std::io::Error> for SafetensorsHeaderError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::InvalidData => Self::Damaged(error.to_string()),
            _ => Self::Io(error),
        }
    }
}

/// Reads a file's header. Returns it with the offset of the values.
fn header(file: &mut File) -> std::result::Result<(u64, Metadata), SafetensorsHeaderError> {
    let damaged = |detail: &str| Err(SafetensorsHeaderError::Damaged(detail.to_owned()));
    let (begin, text) = files::safetensors_header(file)?;
    let header: Metadata =
        serde_json::from_slice(&text).map_err(|e| SafetensorsHeaderError::Damaged(format!("its header is wrong: {e}")))?;
    match (header.data_len() as u64).cmp(&file.metadata()?.len().saturating_sub(begin)) {
        std::cmp::Ordering::Equal => Ok((begin, header)),
        std::cmp::Ordering::Greater => damaged("it is truncated: its header lists more bytes than there are"),
        std::cmp::Ordering::Less => damaged("it is longer than its header says"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{self, Activity};

    /// Writes a file of tensors that all have the same value.
    fn write(path: &Path, names: &[&str], value: f32) {
        let entry = |(i, name): (usize, &&str)| {
            format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[{},{}]}}", 4 * i, 4 * i + 4)
        };
        let header = format!("{{{}}}", names.iter().enumerate().map(entry).collect::<Vec<_>>().join(","));
        let values = value.to_le_bytes().repeat(names.len());
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &values].concat();
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn the_bytes_of_tensors_that_are_taken_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("model.safetensors"), &["a", "b"], 1.0);
        let task = ProgressTask::new(Activity::LoadingModel).with_subject("counted tensors");
        let mut shards = SafetensorsReader::open_model(folder.path()).unwrap().counted_by(task);
        let counted = || {
            let tasks = activity::current().into_iter().filter(|task| task.subject == "counted tensors");
            tasks.map(|task| (task.done, task.total)).collect::<Vec<_>>()
        };
        assert_eq!(counted(), [(0, Some(8))]);
        shards.take("b", &[1], "a test").unwrap();
        assert_eq!(counted(), [(4, Some(8))]);
        drop(shards);
        assert!(counted().is_empty());
    }

    #[test]
    fn one_file_comes_before_shards_and_no_two_of_those_share_a_tensor() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("model.safetensors.index.json"), r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#)
            .unwrap();
        write(&at("1.safetensors"), &["a"], 1.0);
        write(&at("2.safetensors"), &["b"], 2.0);
        write(&at("model.safetensors"), &["a"], 3.0);
        let taken = |name: &str| {
            let taken = SafetensorsReader::open_model(folder.path()).unwrap().take(name, &[1], "a test").unwrap();
            taken.map(|tensor| tensor.to_vec1::<f32>().unwrap())
        };
        assert_eq!((taken("a"), taken("b")), (Some(vec![3.0]), None));
        std::fs::remove_file(at("model.safetensors")).unwrap();
        assert_eq!((taken("a"), taken("b")), (Some(vec![1.0]), Some(vec![2.0])));
        write(&at("2.safetensors"), &["b", "a"], 2.0);
        let error = SafetensorsReader::open_model(folder.path()).err().unwrap().to_string();
        assert!(
            error.contains("2.safetensors") && error.contains("has a, and so has") && error.contains("1.safetensors"),
            "{error}"
        );
    }
}

//! Tensor files that several processes write in parts, or that one process reads in parts.

use super::write::{TensorEntry, torch_metadata, write_file, write_tensors};
use super::{Error, Result};
use crate::config::files;
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::Metadata;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Returns the name of one of the `of` files that replace a single file of this name, in transformers' format.
pub fn shard_name(name: &str, number: usize, of: usize) -> String {
    let stem = name.strip_suffix(".safetensors").unwrap_or(name);
    format!("{stem}-{:05}-of-{of:05}.safetensors", number + 1)
}

/// Returns the name of the single file that this shard is a part of, or `None` if the name is not that of a shard.
pub fn joined_name(shard: &str) -> Option<String> {
    let (rest, of) = shard.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(number) && is_number(of)).then(|| format!("{stem}.safetensors"))
}

/// Writes some of a model's tensors as one of several files. Writes nothing if there are none.
///
/// # Errors
/// If the file can't be written.
pub fn write_shard(tensors: Vec<(String, Tensor)>, file: &Path) -> Result<()> {
    if tensors.is_empty() { Ok(()) } else { write_tensors(tensors, torch_metadata(), file) }
}

/// Writes the index of a model folder's weight files.
///
/// # Errors
/// If a file can't be read, or the index can't be written.
pub fn write_index(folder: &Path) -> Result<()> {
    let (mut weight_map, mut total) = (BTreeMap::new(), 0);
    for file in shards_in(folder, "model")? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (_, header) = header(&file)?;
        total += header.data_len();
        weight_map.extend(header.tensors().into_keys().map(|tensor| (tensor, name.clone())));
    }
    let path = folder.join("model.safetensors.index.json");
    let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    std::fs::write(&path, format!("{index:#}\n")).map_err(|source| Error::Write { path: path.clone(), source })
}

/// Returns the files of this stem in a folder: the single one, or its shards in order.
///
/// # Errors
/// If the folder can't be read.
pub fn shards_in(folder: &Path, stem: &str) -> Result<Vec<PathBuf>> {
    let io = |source| Error::Io { path: folder.to_owned(), source };
    let (single, parts) = (format!("{stem}.safetensors"), format!("{stem}-"));
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if name == single || name.starts_with(&parts) && name.ends_with(".safetensors") {
            all.push(folder.join(name));
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// Joins tensor files into one, without reading an entire file into memory.
///
/// # Errors
/// If a file can't be read or is damaged, two files have a tensor of the same name, or the new file can't be written.
pub fn join_files(files: &[PathBuf], to: &Path) -> Result<()> {
    let (mut opened, mut entries, mut metadata) = (Vec::new(), Vec::new(), None);
    for path in files {
        let (begin, header) = header(path)?;
        metadata = metadata.or_else(|| header.metadata().clone());
        for (name, info) in header.tensors() {
            let (from, to) = info.data_offsets;
            let content = (opened.len(), begin + from as u64, (to - from) as u64);
            entries.push(TensorEntry { name, dtype: info.dtype, shape: info.shape.clone(), content });
        }
        opened.push(files::open(path).map_err(|source| Error::Io { path: path.clone(), source })?);
    }
    write_file(entries, metadata, to, |(file, from, length): (usize, u64, u64), to| {
        let file: &mut File = &mut opened[file];
        file.seek(SeekFrom::Start(from))?;
        if io::copy(&mut file.take(length), to)? < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    })
}

/// Reads the tensors that `wanted` selects, of any type, from files. The others take no memory.
///
/// # Errors
/// If a file can't be read or is damaged.
pub fn read_tensors(files: &[PathBuf], wanted: impl Fn(&str) -> bool) -> Result<HashMap<String, Tensor>> {
    let mut all = HashMap::new();
    for path in files {
        let io = |source| Error::Io { path: path.clone(), source };
        let (begin, header) = header(path)?;
        let mut file = files::open(path).map_err(io)?;
        for (name, info) in header.tensors().into_iter().filter(|(name, _)| wanted(name)) {
            let (from, to) = info.data_offsets;
            let dtype = DType::try_from(info.dtype).map_err(crate::ops::Error::from)?;
            file.seek(SeekFrom::Start(begin + from as u64)).map_err(io)?;
            let mut bytes = vec![0; to - from];
            file.read_exact(&mut bytes).map_err(io)?;
            let tensor = Tensor::from_raw_buffer(&bytes, dtype, &info.shape, &Device::Cpu).map_err(crate::ops::Error::from)?;
            all.insert(name, tensor);
        }
    }
    Ok(all)
}

/// Reads a file's header. Returns it with the offset of the values.
fn header(path: &Path) -> Result<(u64, Metadata)> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let damaged = |detail: String| Error::Weights { path: path.to_owned(), detail };
    let mut file: File = files::open(path).map_err(io)?;
    let (begin, text) = files::safetensors_header(&mut file).map_err(io)?;
    let header: Metadata = serde_json::from_slice(&text).map_err(|e| damaged(format!("its header is wrong: {e}")))?;
    let (length, values) = (file.metadata().map_err(io)?.len(), header.data_len() as u64);
    if length.saturating_sub(begin) != values {
        return Err(damaged(format!("it has {length} bytes; by its header it has {values} bytes of values after {begin}")));
    }
    Ok((begin, header))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_file_hold_what_it_would_and_are_read_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let tensor = |x: f32| Tensor::new(&[[x, 1.0]], &Device::Cpu).unwrap();
        let codes = Tensor::new(&[1u8, 2, 3], &Device::Cpu).unwrap();
        let at = |number| folder.path().join(shard_name("model.safetensors", number, 3));
        write_shard(vec![("a".into(), tensor(1.0))], &at(0)).unwrap();
        write_shard(Vec::new(), &at(1)).unwrap();
        write_shard(vec![("b".into(), tensor(2.0)), ("c".into(), codes)], &at(2)).unwrap();
        assert_eq!(joined_name(&shard_name("model.safetensors", 2, 3)).as_deref(), Some("model.safetensors"));
        assert!(
            ["model.safetensors", "model-1-of-3.safetensors", "model-00001-of-00003.json"]
                .iter()
                .all(|n| joined_name(n).is_none())
        );
        write_index(folder.path()).unwrap();
        let index: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.path().join("model.safetensors.index.json")).unwrap()).unwrap();
        assert_eq!(
            index["weight_map"],
            json!({
                "a": "model-00001-of-00003.safetensors",
                "b": "model-00003-of-00003.safetensors",
                "c": "model-00003-of-00003.safetensors",
            })
        );
        assert_eq!(index["metadata"]["total_size"], 19);
        let files = shards_in(folder.path(), "model").unwrap();
        assert_eq!(files.len(), 2);
        let read = read_tensors(&files, |name| name != "a").unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read["b"].to_vec2::<f32>().unwrap(), [[2.0, 1.0]]);
        assert_eq!(read["c"].to_vec1::<u8>().unwrap(), [1, 2, 3]);
        // The joined file is identical to the one that the library writes for all tensors.
        let whole = folder.path().join("whole.safetensors");
        join_files(&files, &whole).unwrap();
        let all = read_tensors(&files, |_| true).unwrap();
        assert_eq!(std::fs::read(&whole).unwrap(), safetensors::serialize(all, torch_metadata()).unwrap());
        let twice = [files[0].clone(), whole];
        assert!(join_files(&twice, &at(7)).unwrap_err().to_string().contains("there are two tensors a"));
        let bytes = std::fs::read(&files[1]).unwrap();
        std::fs::write(&files[1], &bytes[..bytes.len() - 1]).unwrap();
        assert!(read_tensors(&files, |_| true).is_err());
    }
}

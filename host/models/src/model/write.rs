//! Writes weights and configurations.

use super::weights::is_critic_parameter;
use super::{Error, Result, Weights};
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::config::printable;
use crate::ops;
use candle_core::Tensor;
use safetensors::tensor::{Metadata, TensorInfo};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Alignment of the header's length, in bytes.
const ALIGNMENT: usize = 8;

/// Maximum number of bytes written at once, so that progress advances within a large tensor.
const AT_ONCE: usize = 4 << 20;

/// Maximum length of a shown file name, in bytes.
const SHOWN: usize = 200;

pub(super) fn unwritten(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    |source| Error::Write { path: path.to_owned(), source }
}

/// Writes a critic's head to a separate file, if the model has one.
///
/// # Errors
/// If the file can't be written.
pub fn write_critic(weights: &Weights, file: &Path) -> Result<()> {
    let tensors: Vec<(String, Tensor)> =
        weights.named().into_iter().filter(|(name, _)| is_critic_parameter(name)).map(|(n, t)| (n, t.clone())).collect();
    if tensors.is_empty() {
        return Ok(());
    }
    write_tensors(tensors, None, file)
}

/// Writes one safetensors file, excluding a critic's head and an adapter.
pub fn write_weights(weights: &Weights, file: &Path) -> Result<()> {
    let tensors = weights.in_files()?.into_iter().filter(|(name, _)| !is_critic_parameter(name)).collect();
    // transformers refuses a file without the format of its tensors.
    write_tensors(tensors, torch_metadata(), file)
}

/// Returns the metadata that transformers and peft expect in a tensor file.
pub(super) fn torch_metadata() -> Option<HashMap<String, String>> {
    Some(HashMap::from([("format".to_owned(), "pt".to_owned())]))
}

/// Writes a safetensors file with the permissions of any new file. Each tensor is dropped after it is written.
///
/// # Errors
/// If the file can't be written.
pub fn write_tensors(tensors: Vec<(String, Tensor)>, metadata: Option<HashMap<String, String>>, file: &Path) -> Result<()> {
    let entry = |(name, tensor): (String, Tensor)| TensorEntry {
        name,
        dtype: tensor.dtype().into(),
        shape: tensor.dims().to_vec(),
        content: tensor,
    };
    write_file(tensors.into_iter().map(entry).collect(), metadata, file, |tensor, to| {
        let tensor = if tensor.device().is_cpu() { tensor } else { ops::on_host(&tensor).map_err(io::Error::other)? };
        ops::write_tensor(to, &tensor)
    })
}

/// A writer that counts the written bytes.
struct TaskProgressWriter<'a, W> {
    to: W,
    task: &'a ProgressTask,
}

impl<W: Write> Write for TaskProgressWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(&bytes[..bytes.len().min(AT_ONCE)])?;
        self.task.add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// A tensor of a file to be written, and the source of its bytes.
pub(super) struct TensorEntry<T> {
    pub name: String,
    pub dtype: safetensors::Dtype,
    pub shape: Vec<usize>,
    pub content: T,
}

/// Writes a safetensors file in the library's own order, by descending value size and then by name. `write` writes the bytes of each
/// tensor.
///
/// # Errors
/// If the file can't be written, or two tensors have the same name.
pub(super) fn write_file<T>(
    mut entries: Vec<TensorEntry<T>>,
    metadata: Option<HashMap<String, String>>,
    file: &Path,
    mut write: impl FnMut(T, &mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let wrong = |detail: String| Error::Weights { path: file.to_owned(), detail: format!("can't write: {detail}") };
    entries.sort_by(|a, b| (Reverse(a.dtype), &a.name).cmp(&(Reverse(b.dtype), &b.name)));
    if let Some(twice) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(wrong(format!("there are two tensors {}", twice[0].name)));
    }
    let mut end = 0;
    let infos = entries.iter().map(|entry| {
        let begin = end;
        end += entry.shape.iter().product::<usize>() * entry.dtype.bitsize() / 8;
        (entry.name.clone(), TensorInfo { dtype: entry.dtype, shape: entry.shape.clone(), data_offsets: (begin, end) })
    });
    let header = Metadata::new(metadata, infos.collect()).map_err(|e| wrong(e.to_string()))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| wrong(e.to_string()))?;
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    let name = file.file_name().map(|name| printable(&name.to_string_lossy(), SHOWN)).unwrap_or_default();
    let task = ProgressTask::new(Activity::WritingFile)
        .with_subject(name)
        .with_total((size_of::<u64>() + header.len() + end) as u64, ProgressUnit::Bytes);
    let write_all = || {
        let mut to = BufWriter::new(TaskProgressWriter { to: File::create(file)?, task: &task });
        to.write_all(&(header.len() as u64).to_le_bytes())?;
        to.write_all(&header)?;
        entries.into_iter().try_for_each(|entry| write(entry.content, &mut to))?;
        to.flush()
    };
    write_all().map_err(unwritten(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity;

    #[test]
    fn a_file_is_counted_in_bytes_while_it_is_written() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("counted.safetensors");
        let entry =
            |name: &str| TensorEntry { name: name.to_owned(), dtype: safetensors::Dtype::U8, shape: vec![9 << 20], content: () };
        let mut counted = Vec::new();
        write_file(vec![entry("a"), entry("b")], None, &file, |(), to| {
            to.write_all(&vec![0; 9 << 20])?;
            let tasks = activity::current().into_iter().filter(|task| task.subject == "counted.safetensors");
            counted.extend(tasks.map(|task| (task.done, task.total)));
            Ok(())
        })
        .unwrap();
        let whole = file.metadata().unwrap().len();
        let [first, second] = counted[..] else { panic!("{counted:?}") };
        assert_eq!((first.1, second.1), (Some(whole), Some(whole)));
        assert!(first.0 >= 8 << 20 && first.0 < second.0 && second.0 <= whole, "{counted:?}");
    }
}

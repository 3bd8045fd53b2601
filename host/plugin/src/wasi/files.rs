//! The files of WASI: only those in folders that the plugin may read. All operations other than reading are refused.

use super::Wasi;
use super::open_files::FileHandle;
use super::state::datetime;
use crate::folders::{FolderNode, Folders};
use crate::sandbox::Sandbox;
use wasmtime::component::{ResourceDynamic, Val};
use wasmtime::{AsContextMut, Result, StoreContextMut, bail};

/// Maximum number of bytes of one read.
const MOST_READ: u64 = 1 << 16;

/// A file function's result: a value, a value with a resource of this kind, or one of WASI's error codes.
enum FileAnswer {
    Value(Option<Val>),
    Resource(&'static str, FileHandle),
    Error(&'static str),
}

/// Returns the result of a file function. Returns `None` if the function is not one or the plugin has no folders. Each argument that is a
/// resource comes with its number.
pub(super) fn answer(
    (interface, function): (&str, &str),
    (arguments, lent): (&[Val], &[u32]),
    kinds: &[String],
    store: &mut StoreContextMut<'_, Sandbox>,
) -> Result<Option<Val>> {
    let Some(folders) = store.data_mut().wasi().files.folders.clone() else { return Ok(None) };
    if (interface, function) == ("wasi:filesystem/preopens", "get-directories") {
        let given: Vec<(String, usize)> = folders.roots().map(|(name, node)| (format!("/{name}"), node)).collect();
        let folder =
            |(path, node)| Ok(Val::Tuple(vec![resource("descriptor", FileHandle::Node(node), kinds, store)?, Val::String(path)]));
        return Ok(Some(Val::List(given.into_iter().map(folder).collect::<Result<_>>()?)));
    }
    let Wasi { files, .. } = store.data_mut().wasi();
    let Some(handle) = lent.first().and_then(|number| files.handle(*number)) else { return Ok(None) };
    let said = match (*handle, function) {
        (FileHandle::Node(node), "[method]descriptor.is-same-object") => {
            let second = lent.get(1).and_then(|number| files.handle(*number));
            return Ok(Some(Val::Bool(matches!(second, Some(FileHandle::Node(other)) if *other == node))));
        }
        (FileHandle::Node(node), _) => of_node(&folders, node, function, &arguments[1..]),
        (FileHandle::Reader { node, at }, _) => {
            let Some((read, next)) = of_reader(&folders, node, at, function, &arguments[1..]) else { return Ok(None) };
            *handle = FileHandle::Reader { node, at: next };
            Some(read)
        }
        (FileHandle::Entries { node, at }, "[method]directory-entry-stream.read-directory-entry") => {
            *handle = FileHandle::Entries { node, at: at + 1 };
            let entry = match folders.node(node) {
                Some(FolderNode::Folder(entries)) => entries.get(at),
                _ => None,
            };
            let entry = entry.map(|(name, node)| {
                let fields = [("type", kind(folders.node(*node))), ("name", Val::String(name.clone()))];
                Box::new(record(fields))
            });
            Some(FileAnswer::Value(Some(Val::Option(entry))))
        }
        _ => None,
    };
    Ok(match said {
        None => None,
        Some(FileAnswer::Value(value)) => Some(Val::Result(Ok(value.map(Box::new)))),
        Some(FileAnswer::Resource(of, handle)) => Some(Val::Result(Ok(Some(Box::new(resource(of, handle, kinds, store)?))))),
        Some(FileAnswer::Error(code)) => Some(Val::Result(Err(Some(Box::new(Val::Enum(code.to_owned())))))),
    })
}

/// Opens a handle and returns the resource that the instance gets.
fn resource(of: &str, handle: FileHandle, kinds: &[String], store: &mut StoreContextMut<'_, Sandbox>) -> Result<Val> {
    let Some(kind) = kinds.iter().position(|kind| kind == of) else { bail!("it imports no {of}") };
    let number = store.data_mut().wasi().files.open(handle)?;
    Ok(Val::Resource(ResourceDynamic::new_own(number, kind as u32).try_into_resource_any(store.as_context_mut())?))
}

fn record<const N: usize>(fields: [(&str, Val); N]) -> Val {
    Val::Record(fields.map(|(name, value)| (name.to_owned(), value)).to_vec())
}

fn kind(node: Option<&FolderNode>) -> Val {
    Val::Enum(if matches!(node, Some(FolderNode::Folder(_))) { "directory" } else { "regular-file" }.to_owned())
}

/// Answers the functions of a descriptor. Returns `None` for unimplemented functions, which then report that access is denied.
fn of_node(folders: &Folders, node: usize, function: &str, rest: &[Val]) -> Option<FileAnswer> {
    let method = function.strip_prefix("[method]descriptor.")?;
    let found = |path: &str| folders.find(node, path);
    let here = folders.node(node)?;
    Some(match (method, rest) {
        ("get-flags", []) => FileAnswer::Value(Some(Val::Flags(vec!["read".to_owned()]))),
        ("get-type", []) => FileAnswer::Value(Some(kind(Some(here)))),
        ("stat", []) => FileAnswer::Value(Some(stat(here))),
        ("metadata-hash", []) => FileAnswer::Value(Some(identity(node))),
        ("stat-at", [_, Val::String(path)]) => match found(path) {
            Ok(at) => FileAnswer::Value(folders.node(at).map(stat)),
            Err(code) => FileAnswer::Error(code),
        },
        ("metadata-hash-at", [_, Val::String(path)]) => match found(path) {
            Ok(at) => FileAnswer::Value(Some(identity(at))),
            Err(code) => FileAnswer::Error(code),
        },
        ("readlink-at", _) => FileAnswer::Error("invalid"),
        ("open-at", [_, Val::String(path), Val::Flags(open), Val::Flags(how)]) => opened(folders, node, path, &[open, how]),
        ("read", [Val::U64(length), Val::U64(at)]) => match here {
            FolderNode::File(bytes) => {
                let part = part(bytes, *at, *length);
                let end = Val::Bool(*at + part.len() as u64 >= bytes.len() as u64);
                FileAnswer::Value(Some(Val::Tuple(vec![list(part), end])))
            }
            FolderNode::Folder(_) => FileAnswer::Error("is-directory"),
        },
        ("read-via-stream", [Val::U64(at)]) => match here {
            FolderNode::File(_) => FileAnswer::Resource("input-stream", FileHandle::Reader { node, at: *at }),
            FolderNode::Folder(_) => FileAnswer::Error("is-directory"),
        },
        ("read-directory", []) => match here {
            FolderNode::Folder(_) => FileAnswer::Resource("directory-entry-stream", FileHandle::Entries { node, at: 0 }),
            FolderNode::File(_) => FileAnswer::Error("not-directory"),
        },
        ("advise" | "sync" | "sync-data", _) => FileAnswer::Value(None),
        (
            "create-directory-at"
            | "unlink-file-at"
            | "remove-directory-at"
            | "rename-at"
            | "link-at"
            | "symlink-at"
            | "set-size"
            | "set-times"
            | "set-times-at"
            | "write"
            | "write-via-stream"
            | "append-via-stream",
            _,
        ) => FileAnswer::Error("read-only"),
        _ => return None,
    })
}

/// Opens the target of a path, with these flags.
fn opened(folders: &Folders, from: usize, path: &str, flags: &[&Vec<String>]) -> FileAnswer {
    let asks = |flag: &str| flags.iter().any(|given| given.iter().any(|given| given == flag));
    match folders.find(from, path) {
        Err("no-entry") if asks("create") => FileAnswer::Error("read-only"),
        Err(code) => FileAnswer::Error(code),
        Ok(_) if asks("create") && asks("exclusive") => FileAnswer::Error("exist"),
        Ok(_) if ["truncate", "write", "mutate-directory"].into_iter().any(asks) => FileAnswer::Error("read-only"),
        Ok(at) if asks("directory") && !matches!(folders.node(at), Some(FolderNode::Folder(_))) => {
            FileAnswer::Error("not-directory")
        }
        Ok(at) => FileAnswer::Resource("descriptor", FileHandle::Node(at)),
    }
}

/// Answers the functions of a stream that reads a file. Also returns the stream's new position.
fn of_reader(folders: &Folders, node: usize, at: u64, function: &str, rest: &[Val]) -> Option<(FileAnswer, u64)> {
    let method = function.strip_prefix("[method]input-stream.")?;
    let Some(FolderNode::File(bytes)) = folders.node(node) else { return None };
    let [Val::U64(length)] = rest else { return None };
    let read = part(bytes, at, *length);
    // At the end of the file, the default answer reports that the stream is closed.
    if read.is_empty() && *length > 0 {
        return None;
    }
    let value = match method {
        "read" | "blocking-read" => list(read),
        "skip" | "blocking-skip" => Val::U64(read.len() as u64),
        _ => return None,
    };
    Some((FileAnswer::Value(Some(value)), at + read.len() as u64))
}

fn part(bytes: &[u8], at: u64, length: u64) -> &[u8] {
    let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    &bytes[from..bytes.len().min(from + length.min(MOST_READ) as usize)]
}

fn list(bytes: &[u8]) -> Val {
    Val::List(bytes.iter().copied().map(Val::U8).collect())
}

fn stat(node: &FolderNode) -> Val {
    let size = if let FolderNode::File(bytes) = node { bytes.len() as u64 } else { 0 };
    let time = || Val::Option(Some(Box::new(datetime(0))));
    record([
        ("type", kind(Some(node))),
        ("link-count", Val::U64(1)),
        ("size", Val::U64(size)),
        ("data-access-timestamp", time()),
        ("data-modification-timestamp", time()),
        ("status-change-timestamp", time()),
    ])
}

/// A value that identifies a file.
fn identity(node: usize) -> Val {
    record([("lower", Val::U64(node as u64)), ("upper", Val::U64(1))])
}

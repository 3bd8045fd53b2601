//! Opens files that a person names or that are in somebody else's folders. It never blocks, never reads without limit, and never writes
//! through a link.

use std::ffi::OsStr;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime};
use tempfile::NamedTempFile;

/// Returns whether an error is about the given path rather than the machine; a full disk is not, for example.
pub fn is_path_error(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, FileTooLarge, OutOfMemory, QuotaExceeded, ResourceBusy, StorageFull};
    // EIO, ENFILE and EMFILE (a failing disk, too many open files) have no `ErrorKind`.
    const NUMBERS: [i32; 3] = [5, 23, 24];
    let kinds = [BrokenPipe, FileTooLarge, OutOfMemory, QuotaExceeded, ResourceBusy, StorageFull];
    !kinds.contains(&error.kind()) && !error.raw_os_error().is_some_and(|number| NUMBERS.contains(&number))
}

/// Returns whether a file is a pipe.
fn is_pipe(of: FileType) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        of.is_fifo()
    }
    #[cfg(not(unix))]
    {
        let _ = of;
        false
    }
}

/// Describes the type of a file.
fn kind(of: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if is_pipe(of) {
            return "a pipe";
        }
        if of.is_socket() {
            return "a socket";
        }
        if of.is_char_device() || of.is_block_device() {
            return "a device";
        }
    }
    if of.is_file() {
        "a file"
    } else if of.is_dir() {
        "a folder"
    } else if of.is_symlink() {
        "a link"
    } else {
        "not a file"
    }
}

/// Files in which the library `datasets` describes a dataset.
pub const ABOUT_DATASETS: [&str; 4] = ["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];

/// Returns whether a file next to data only describes it, by its name: documentation, or a file of the library `datasets`.
#[must_use]
pub fn is_about_data(name: &str) -> bool {
    let lower = name.to_lowercase();
    ABOUT_DATASETS.contains(&name) || lower.ends_with(".md") || lower.starts_with("license") || lower.starts_with("readme")
}

/// Returns rlhost's cache folder: `RLHOST_CACHE_DIR`, or one in the user's cache directory.
pub fn cache_folder() -> Option<PathBuf> {
    set("RLHOST_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("rlhost")))
        .or_else(|| set("HOME").map(|d| d.join(".cache").join("rlhost")))
        .or_else(|| set("LOCALAPPDATA").map(|d| d.join("rlhost").join("cache")))
}

/// Returns rlhost's folder for the user's data on this machine: `RLHOST_STATE_DIR`, or one in the state directory. As in the XDG
/// specification, a relative directory is ignored: it could be somebody else's.
pub fn state_folder() -> Option<PathBuf> {
    let whole = |name: &str| set(name).filter(|folder| folder.is_absolute());
    whole("RLHOST_STATE_DIR")
        .or_else(|| whole("XDG_STATE_HOME").map(|d| d.join("rlhost")))
        .or_else(|| whole("HOME").map(|d| d.join(".local").join("state").join("rlhost")))
        .or_else(|| whole("LOCALAPPDATA").map(|d| d.join("rlhost").join("state")))
}

/// Returns the path in an environment variable, unless it is empty.
fn set(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the owner of a file, on systems where files have owners.
#[cfg(unix)]
pub fn owner(file: &Metadata) -> Option<u32> {
    Some(std::os::unix::fs::MetadataExt::uid(file))
}

/// Returns whether other users have any permissions on a file or folder.
#[cfg(unix)]
pub fn is_open_to_others(found: &Metadata) -> bool {
    std::os::unix::fs::MetadataExt::mode(found) & 0o077 != 0
}

#[cfg(not(unix))]
pub fn owner(_: &Metadata) -> Option<u32> {
    None
}

/// Returns false, because the folder is inside the user's own.
#[cfg(not(unix))]
pub fn is_open_to_others(_: &Metadata) -> bool {
    false
}

/// Returns a result; `None` if the file does not exist.
fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Marks a file in a cache as recently used, if possible.
pub fn mark_used(file: &Path) {
    drop(File::options().append(true).open(file).and_then(|f| f.set_modified(SystemTime::now())));
}

/// Writes a file into a cache folder, atomically. Then removes files with the same extension and abandoned temporary files, the least
/// recently used first, until the rest takes at most `room` bytes.
///
/// # Errors
/// If the file can't be written, the folder can't be read or a file can't be removed.
pub fn write_to_cache(bytes: &[u8], file: &Path, room: u64) -> io::Result<()> {
    let (Some(folder), Some(extension)) = (file.parent(), file.extension()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut new = NamedTempFile::new_in(folder)?;
    new.write_all(bytes)?;
    new.persist(file).map_err(|e| e.error)?;
    make_room(folder, extension, room)
}

fn make_room(folder: &Path, extension: &OsStr, room: u64) -> io::Result<()> {
    let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Another process may remove files too.
        let Some(metadata) = if_exists(entry.metadata())? else { continue };
        let path = entry.path();
        let left_behind = entry.file_name().to_string_lossy().starts_with(".tmp");
        if left_behind || path.extension().is_some_and(|e| e == extension) {
            files.push((metadata.modified()?, metadata.len(), path));
        }
    }
    files.sort();
    let mut held: u64 = files.iter().map(|(_, length, _)| length).sum();
    for (_, length, path) in files {
        if held <= room {
            break;
        }
        if_exists(fs::remove_file(path))?;
        held -= length;
    }
    Ok(())
}

/// Rejects anything but a regular file.
///
/// # Errors
/// If it is something else; says what it is.
pub fn must_be_file(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}, not a regular file", kind(found.file_type()))))
}

/// Opens a regular file for reading, following links.
///
/// # Errors
/// On a pipe, device, socket or folder, without blocking, and on a dangling link.
pub fn open(path: &Path) -> io::Result<File> {
    let found = fs::metadata(path).map_err(|error| match fs::symlink_metadata(path) {
        Ok(link) if error.kind() == io::ErrorKind::NotFound && link.is_symlink() => {
            io::Error::new(io::ErrorKind::InvalidInput, "it is a link to a file that does not exist")
        }
        _ => error,
    })?;
    must_be_file(&found)?;
    let file = at_once(File::options().read(true), false).open(path)?;
    // The path may have been replaced in between.
    must_be_file(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// Those of [`open`], and if the file is larger.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_limited(open(path)?, limit)
}

/// Reads everything, up to `limit` bytes.
///
/// # Errors
/// If reading fails, or there are more bytes.
pub fn read_limited(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let most = match limit {
            0..1024 => format!("{limit} bytes"),
            1024..0x10_0000 => format!("{} KiB", limit >> 10),
            _ => format!("{} MiB", limit >> 20),
        };
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is larger than the limit of {most}")));
    }
    Ok(bytes)
}

/// Reads a whole text file of at most `limit` bytes.
///
/// # Errors
/// Those of [`read`], and if it is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    utf8(read(path, limit)?)
}

/// Maximum size of a safetensors file's header; ten thousand tensors need one MB.
const LARGEST_HEADER: u64 = 32 << 20;

/// Reads a safetensors file's header, which follows its length in eight bytes. Returns the offset of the values and the header's text.
///
/// # Errors
/// Of kind [`io::ErrorKind::InvalidData`] if the file can't have such a header.
pub fn safetensors_header(file: &mut File) -> io::Result<(u64, Vec<u8>)> {
    let damaged = |detail: String| Err(io::Error::new(io::ErrorKind::InvalidData, detail));
    let whole = file.metadata()?.len();
    if whole < 8 {
        return damaged("it is shorter than a header's length".into());
    }
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LARGEST_HEADER {
        return damaged(format!("its header has {length} bytes; the maximum is {LARGEST_HEADER}"));
    }
    if 8 + length > whole {
        return damaged("it is truncated within its header".into());
    }
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text)?;
    Ok((8 + length, text))
}

/// Maximum time to wait for a pipe.
const PIPE_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a text file that a person names: a regular file, or a pipe such as `<(...)` or `/dev/stdin`. A pipe can be read only once.
///
/// # Errors
/// Those of [`read_text`], except that a pipe is an error only if it doesn't end in time.
pub fn read_file_or_pipe(path: &Path, limit: u64) -> io::Result<String> {
    read_given_in(path, limit, PIPE_TIMEOUT)
}

fn read_given_in(path: &Path, limit: u64, time: Duration) -> io::Result<String> {
    if !fs::metadata(path).is_ok_and(|found| is_pipe(found.file_type())) {
        return read_text(path, limit);
    }
    let (sender, text) = channel();
    let path = path.to_owned();
    // Opening a pipe blocks until there is a writer, and a blocked thread can't be stopped; it ends with the process, soon afterwards.
    std::thread::Builder::new().name("pipe".into()).spawn(move || {
        let text = File::open(path).and_then(|pipe| read_limited(pipe, limit)).and_then(utf8);
        let _ = sender.send(text);
    })?;
    text.recv_timeout(time).unwrap_or_else(|_| {
        let detail = format!("it is a pipe that did not end within {} s", time.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, detail))
    })
}

fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Prefix and suffix of the names of temporary files in a run's folder. No other program uses such names.
const TEMPORARY: (&str, &str) = (".rlhost-", ".tmp");

/// Creates a temporary file, to be renamed, with the permissions of an ordinary new file.
pub fn temporary_in(folder: &Path) -> io::Result<NamedTempFile> {
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.prefix(TEMPORARY.0).suffix(TEMPORARY.1).tempfile_in(folder)
}

/// Returns whether a name is that of a file created by [`temporary_in`].
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY.0) && name.ends_with(TEMPORARY.1)
}

/// Returns whether a regular file, not a link, exists at a path.
///
/// # Errors
/// If something else exists there, or this can't be determined.
pub fn exists_as_file(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) => must_be_file(&found).map(|()| true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Opens a file for writing with these `options`, without truncating it; creates it if it is missing.
///
/// # Errors
/// On a link or anything else but a regular file.
pub fn open_for_writing(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    exists_as_file(path)?;
    let file = at_once(options.create(true), true).open(path)?;
    must_be_file(&file.metadata()?)?;
    Ok(file)
}

/// Creates a folder if it doesn't exist.
///
/// # Errors
/// If it can't be created, or a link exists there.
pub fn create_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = fs::symlink_metadata(path)?.file_type();
    if found.is_dir() { Ok(()) } else { Err(io::Error::other(format!("it is {}, not a folder", kind(found)))) }
}

#[cfg(unix)]
fn at_once(options: &mut OpenOptions, own: bool) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(libc::O_NONBLOCK | if own { libc::O_NOFOLLOW } else { 0 })
}

#[cfg(not(unix))]
fn at_once(options: &mut OpenOptions, _own: bool) -> &mut OpenOptions {
    options
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    #[test]
    fn nothing_but_files_is_opened_and_nothing_is_written_through_a_link() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("file"), "abc").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _listening = UnixListener::bind(at("socket")).unwrap();
        assert_eq!((read(&at("file"), 3).unwrap(), read(&at("link"), 3).unwrap()), (b"abc".to_vec(), b"abc".to_vec()));
        assert!(read(&at("file"), 2).unwrap_err().to_string().contains("larger than the limit of 2 bytes"));
        assert_eq!(read(&at("none"), 9).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(at("bytes"), b"\xff").unwrap();
        assert!(read_text(&at("bytes"), 9).unwrap_err().to_string().contains("UTF-8"));
        for (name, what) in
            [("pipe", "a pipe"), ("socket", "a socket"), (".", "a folder"), ("dangling", "a link to a file that does not exist")]
        {
            assert!(open(&at(name)).unwrap_err().to_string().contains(what), "{name}");
        }
        assert!(read(Path::new("/dev/zero"), 9).unwrap_err().to_string().contains("a device"));
        for name in ["pipe", "socket", "link", "dangling"] {
            assert!(open_for_writing(&at(name), File::options().append(true)).is_err(), "{name}");
        }
        open_for_writing(&at("new"), File::options().append(true)).unwrap();
        drop(open_for_writing(&at("file"), File::options().write(true)).unwrap());
        assert_eq!(fs::read(at("file")).unwrap(), b"abc", "not truncated");
        assert!(!at("nowhere").exists());
        symlink(place.path(), at("folder")).unwrap();
        assert!(create_folder(&at("folder")).unwrap_err().to_string().contains("a link"));
        assert_eq!(create_folder(&at("file")).unwrap_err().to_string(), "it is a file, not a folder");
        create_folder(&at("made")).and_then(|()| create_folder(&at("made"))).unwrap();
    }

    #[test]
    fn a_pipe_that_a_person_names_is_read_up_to_a_size_and_a_time() {
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let short = Duration::from_millis(300);
        let nobody = read_given_in(&pipe, 9, short).unwrap_err();
        assert_eq!(nobody.to_string(), "it is a pipe that did not end within 0 s");
        for (sent, limit, expected) in [("abc", 3, Ok("abc")), ("abcd", 3, Err("larger than the limit of 3 bytes"))] {
            let pipe = place.path().join(sent);
            assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            let to = pipe.clone();
            let writing = std::thread::spawn(move || fs::write(to, sent));
            match (read_file_or_pipe(&pipe, limit), expected) {
                (Ok(text), Ok(expected)) => assert_eq!(text, expected),
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
                (given, _) => panic!("{sent}: {given:?}"),
            }
            let _ = writing.join();
        }
        fs::write(place.path().join("file"), "abc").unwrap();
        assert_eq!(read_file_or_pipe(&place.path().join("file"), 3).unwrap(), "abc");
        for (path, what) in [(Path::new("/dev/zero"), "a device"), (place.path(), "a folder")] {
            assert!(read_file_or_pipe(path, 9).unwrap_err().to_string().contains(what), "{}", path.display());
        }
    }
}

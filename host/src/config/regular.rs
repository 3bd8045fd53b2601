//! Files that a person names, opened without waiting and without an end that never comes.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// Opens a file to be read. A pipe without a writer would block for ever, and a device may have no end, so neither is opened.
///
/// # Errors
/// Says what the path is, if it is no regular file, or that it is a link to nowhere.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Before it is opened: opening a pipe already waits.
    let is = path.metadata().map_err(|error| match path.symlink_metadata() {
        Ok(link) if error.kind() == io::ErrorKind::NotFound && link.is_symlink() => {
            io::Error::new(io::ErrorKind::InvalidInput, "it is a link to a file that does not exist")
        }
        _ => error,
    })?;
    if let Some(what) = special(&is) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, not a regular file")));
    }
    File::open(path)
}

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// As [`open_regular`], or if it is larger.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let most = if limit < 1 << 20 { format!("{} KiB", limit >> 10) } else { format!("{} MiB", limit >> 20) };
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is larger than {most}, the most it may have")));
    }
    Ok(bytes)
}

/// Reads a whole text file of at most `limit` bytes.
///
/// # Errors
/// As [`read_regular`], or if it is not UTF-8.
pub fn read_regular_text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read_regular(path, limit)?).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// What a path is, if neither file nor link.
fn special(is: &Metadata) -> Option<&'static str> {
    if is.is_file() {
        return None;
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = is.file_type();
        if kind.is_fifo() {
            return Some("a pipe");
        }
        if kind.is_socket() {
            return Some("a socket");
        }
        if kind.is_char_device() || kind.is_block_device() {
            return Some("a device");
        }
    }
    Some(if is.is_dir() { "a folder" } else { "something special" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_named_and_what_is_large_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "12345").unwrap();
        let said = |path: &Path, limit| read_regular(path, limit).map_err(|e| e.to_string());
        assert_eq!(said(&file, 5).unwrap(), b"12345");
        assert!(said(&file, 4).unwrap_err().contains("larger"));
        assert!(said(folder.path(), 9).unwrap_err().contains("a folder"));
        assert_eq!(read_regular(&folder.path().join("none"), 9).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&file, b"\xff").unwrap();
        assert!(read_regular_text(&file, 9).unwrap_err().to_string().contains("UTF-8"));
    }

    #[cfg(unix)]
    #[test]
    fn pipes_devices_sockets_and_links_to_nowhere_are_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
        for (path, what) in [
            (at("pipe"), "a pipe"),
            (at("socket"), "a socket"),
            (at("link"), "a link to a file that does not exist"),
            ("/dev/zero".into(), "a device"),
        ] {
            let error = open_regular(&path).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}

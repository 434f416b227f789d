package generator

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// Write makes the pending changes. New bytes go to temporary files first and are renamed into place once
// all of them are on disk; when a rename or removal fails, those before it are undone. So after an error
// the folder is as it was, unless undoing failed too, which the error then says. A file that changed since
// Plan is an error, and nothing is written.
func (c *Changes) Write() error {
	pending := c.Pending()
	if len(pending) == 0 {
		return nil
	}
	root, err := openFolder(c.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	w := &writer{root: root, dir: c.Dir, id: rand.Text()}
	defer w.removeTemporaries()
	if err := w.verify(pending); err != nil {
		return err
	}
	if err := w.makeFolders(pending); err != nil {
		return errors.Join(err, w.removeFolders())
	}
	staged := make([]string, len(pending))
	for i, change := range pending {
		if change.Kind == Remove {
			continue
		}
		if staged[i], err = w.stage(change.New, change.mode); err != nil {
			return errors.Join(w.failed("write", change.Name, err), w.removeFolders())
		}
	}
	for i, change := range pending {
		if err := w.commit(change, staged[i]); err != nil {
			return errors.Join(w.failed(string(change.Kind), change.Name, err), w.undo(pending[:i]), w.removeFolders())
		}
	}
	return nil
}

// writer is one run of Write.
type writer struct {
	root        *os.Root
	dir         string
	id          string
	temporaries []string
	folders     []string // that it made
}

func (w *writer) failed(verb, name string, err error) error {
	return fmt.Errorf("%s %s: %w", verb, filepath.Join(w.dir, name), cause(err))
}

var errChangedMeanwhile = errors.New("it changed since it was read: run again")

// verify reports a file that is not what Plan saw.
func (w *writer) verify(pending []Change) error {
	for _, change := range pending {
		now, err := w.root.ReadFile(change.Name)
		if errors.Is(err, fs.ErrNotExist) && change.Kind == Create {
			continue
		}
		if err == nil && (change.Kind == Create || !bytes.Equal(now, change.Old)) {
			err = errChangedMeanwhile
		}
		if err != nil {
			return w.failed(string(change.Kind), change.Name, err)
		}
	}
	return nil
}

// stage writes content to a temporary file, whose name starts with a dot so that Go passes over it.
func (w *writer) stage(content []byte, mode fs.FileMode) (string, error) {
	name := fmt.Sprintf(".outboxgen-%s-%d.tmp", w.id, len(w.temporaries))
	f, err := w.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return "", err
	}
	w.temporaries = append(w.temporaries, name)
	_, err = f.Write(content)
	return name, errors.Join(err, f.Close())
}

func (w *writer) commit(change Change, staged string) error {
	if change.Kind == Remove {
		return w.root.Remove(change.Name)
	}
	return w.root.Rename(staged, change.Name)
}

// undo puts back what was there before done.
func (w *writer) undo(done []Change) error {
	var errs []error
	for _, change := range done {
		var err error
		if change.Kind == Create {
			err = w.root.Remove(change.Name)
		} else {
			var staged string
			if staged, err = w.stage(change.Old, change.mode); err == nil {
				err = w.root.Rename(staged, change.Name)
			}
		}
		if err != nil {
			errs = append(errs, w.failed("restore", change.Name, err))
		}
	}
	return errors.Join(errs...)
}

// makeFolders makes the sub-folders that new files need.
func (w *writer) makeFolders(pending []Change) error {
	for _, change := range pending {
		folder := path.Dir(change.Name)
		if change.Kind != Create || folder == "." {
			continue
		}
		switch err := w.root.Mkdir(folder, 0o755); {
		case err == nil:
			w.folders = append(w.folders, folder)
		case !errors.Is(err, fs.ErrExist):
			return w.failed("make folder", folder, err)
		}
	}
	return nil
}

// removeFolders removes what makeFolders made.
func (w *writer) removeFolders() error {
	var errs []error
	for _, folder := range w.folders {
		if err := w.root.Remove(folder); err != nil {
			errs = append(errs, w.failed("remove folder", folder, err))
		}
	}
	return errors.Join(errs...)
}

// removeTemporaries removes what was not renamed into place.
func (w *writer) removeTemporaries() {
	for _, name := range w.temporaries {
		_ = w.root.Remove(name) // most have been renamed
	}
}

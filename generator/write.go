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
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Write makes the pending changes. It first writes new bytes to temporary files, and renames these into place when all
// of them are on disk. If a rename or removal fails, those before it are undone. So after an error the folder is
// unchanged, unless undoing failed too, which the error then says. If a file has changed since Plan, Write returns an
// error and writes nothing.
//
// It also removes temporary files of killed runs, after a minute.
func (c *Changes) Write() error {
	files := make([]File, len(c.Files))
	for i, change := range c.Files {
		files[i] = File{Name: change.Name, Content: change.New}
		if change.Kind == Remove {
			files[i].Content = change.Old
		}
	}
	root, err := openFolder(c.Dir, consumerNames(files)...)
	if err != nil {
		return err
	}
	defer root.Close()
	removeAbandoned(root, time.Now())
	pending := c.Pending()
	if len(pending) == 0 {
		return nil
	}
	w := &writer{root: root, dir: c.Dir, id: rand.Text(), start: time.Now(), writeTo: c.writeTo}
	if w.writeTo == nil {
		w.writeTo = (*os.File).Write
	}
	defer w.removeTemporaries()
	if err := w.verify(pending); err != nil {
		return err
	}
	if err := w.makeFolders(pending); err != nil {
		return errors.Join(err, w.removeFolders())
	}
	staged, backups := make([]string, len(pending)), make([]string, len(pending))
	for i, change := range pending {
		if change.Kind != Remove {
			staged[i], err = w.stage(change.New, change.mode)
		}
		if err == nil && change.Kind != Create {
			backups[i], err = w.backUp(change)
		}
		if err != nil {
			return errors.Join(w.failed("write", change.Name, err), w.removeFolders())
		}
	}
	for i, change := range pending {
		if err := w.commit(change, staged[i]); err != nil {
			return errors.Join(w.failed(string(change.Kind), change.Name, err), w.undo(pending[:i], backups), w.removeFolders())
		}
	}
	return nil
}

// WriteNew writes files that must not exist yet to the folder dir: all of them, or none if it returns an error.
func WriteNew(dir string, files []File) error {
	return creations(dir, files).Write()
}

func creations(dir string, files []File) *Changes {
	c := &Changes{Dir: dir}
	for _, f := range files {
		c.Files = append(c.Files, Change{Name: f.Name, Kind: Create, New: f.Content, mode: 0o644})
	}
	return c
}

// temporaryName matches the temporary files of all runs. Their name holds the Unix time of their creation, because a
// link has the time of its file.
var temporaryName = regexp.MustCompile(`^\.outboxgen-([0-9]{10,12})-[A-Z2-7]{26}-[0-9]+\.tmp$`)

// abandonedAfter is much longer than a run keeps a temporary file. If a run takes longer and loses one, its rename
// fails, and it undoes its changes.
const abandonedAfter = time.Minute

// removeAbandoned removes the temporary files of killed runs. It ignores errors.
func removeAbandoned(root *output, now time.Time) {
	entries, err := root.ReadDir(".")
	if err != nil {
		return
	}
	for _, entry := range entries {
		name := temporaryName.FindStringSubmatch(entry.Name())
		if name == nil || !entry.Type().IsRegular() {
			continue
		}
		made, err := strconv.ParseInt(name[1], 10, 64)
		if err == nil && now.Sub(time.Unix(made, 0)) > abandonedAfter {
			_ = root.Remove(entry.Name())
		}
	}
}

// writer is one run of Write.
type writer struct {
	root        *output
	dir         string
	id          string
	start       time.Time
	writeTo     func(f *os.File, content []byte) (int, error)
	temporaries []string
	folders     []string // that it has created
}

func (w *writer) failed(verb, name string, err error) error {
	return fmt.Errorf("%s %s: %w", verb, filepath.Join(w.dir, name), cause(err))
}

var errChangedMeanwhile = errors.New("the file has changed since it was read: run the command again")

// verify reports a file that has changed since Plan read it.
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

// stage writes content to a temporary file, whose name starts with a dot so that Go ignores it.
func (w *writer) stage(content []byte, mode fs.FileMode) (string, error) {
	name := w.temporary()
	f, err := w.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return "", err
	}
	_, err = w.writeTo(f, content)
	return name, errors.Join(err, f.Close())
}

// temporary returns a new name, for removeTemporaries to remove.
func (w *writer) temporary() string {
	name := fmt.Sprintf(".outboxgen-%d-%s-%d.tmp", w.start.Unix(), w.id, len(w.temporaries))
	w.temporaries = append(w.temporaries, name)
	return name
}

// backUp keeps the file that a change replaces or removes under a temporary name, so that undoing the change needs no
// disk space. It is a link, or a copy on a file system without links.
func (w *writer) backUp(change Change) (string, error) {
	name := w.temporary()
	if err := w.root.Link(change.Name, name); err == nil {
		return name, nil
	}
	return w.stage(change.Old, change.mode)
}

func (w *writer) commit(change Change, staged string) error {
	return whileBusy(isBusy, func() error {
		if change.Kind == Remove {
			return w.root.Remove(change.Name)
		}
		return w.root.Rename(staged, change.Name)
	})
}

// busyFor is how long a file may be held open. It is longer than an editor or a virus scanner needs to read one.
const busyFor = 2 * time.Second

// whileBusy calls do again while its error is one of a file that another program has open, up to busyFor.
func whileBusy(busy func(error) bool, do func() error) error {
	deadline, pause := time.Now().Add(busyFor), time.Millisecond
	for {
		err := do()
		if err == nil || !busy(err) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// undo restores the files as they were before done.
func (w *writer) undo(done []Change, backups []string) error {
	var errs []error
	for i, change := range done {
		var err error
		if change.Kind == Create {
			err = whileBusy(isBusy, func() error { return w.root.Remove(change.Name) })
		} else {
			err = whileBusy(isBusy, func() error { return w.root.Rename(backups[i], change.Name) })
		}
		if err != nil {
			errs = append(errs, w.failed("restore", change.Name, err))
		}
	}
	return errors.Join(errs...)
}

// makeFolders creates the sub-folders that new files need.
func (w *writer) makeFolders(pending []Change) error {
	for _, change := range pending {
		if folder := path.Dir(change.Name); change.Kind == Create && folder != "." {
			if err := w.makeFolder(folder); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeFolder creates folder and its parents.
func (w *writer) makeFolder(folder string) error {
	err := w.root.Mkdir(folder, 0o755)
	if errors.Is(err, fs.ErrNotExist) && path.Base(folder) != ".." {
		if err := w.makeFolder(path.Dir(folder)); err != nil {
			return err
		}
		err = w.root.Mkdir(folder, 0o755)
	}
	switch {
	case err == nil:
		w.folders = append(w.folders, folder)
	case !errors.Is(err, fs.ErrExist):
		return w.failed("make folder", folder, err)
	}
	return nil
}

// removeFolders removes the folders that makeFolders created.
func (w *writer) removeFolders() error {
	var errs []error
	for _, folder := range slices.Backward(w.folders) {
		if err := w.root.Remove(folder); err != nil {
			errs = append(errs, w.failed("remove folder", folder, err))
		}
	}
	return errors.Join(errs...)
}

// removeTemporaries removes the files that were not renamed into place.
func (w *writer) removeTemporaries() {
	for _, name := range w.temporaries {
		_ = w.root.Remove(name) // most have been renamed
	}
}

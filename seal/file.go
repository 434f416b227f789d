package seal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
)

// checkEvery is how often a file of keys is looked at.
const checkEvery = time.Second

// File is a Keyring whose keys are in a file. It reads the file again when that has changed, at most once per second.
// If the changed file cannot be read, the keys of before remain, and the error is that of keys which are not among them.
// It may be used concurrently.
type File struct {
	name  string
	every time.Duration

	mu      sync.Mutex
	ring    *Ring
	info    fs.FileInfo // of the file as it was read
	checked time.Time
	err     error // of the latest attempt to read it
}

// FromFile returns the keyring of the file name, in the form of Parse. To rotate keys, put a new one in front. Replace
// the file by a rename, so that nobody reads half of it.
func FromFile(name string) (*File, error) {
	f := &File{name: name, every: checkEvery}
	f.read()
	if f.err != nil {
		return nil, f.err
	}
	return f, nil
}

// read reads the file if it has changed.
func (f *File) read() {
	f.checked = time.Now()
	info, err := os.Stat(f.name)
	if err == nil && f.info != nil && os.SameFile(info, f.info) && info.ModTime().Equal(f.info.ModTime()) &&
		info.Size() == f.info.Size() {
		f.err = nil
		return
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(f.name)
	}
	var ring *Ring
	if err == nil {
		ring, err = Parse(string(text))
	}
	if err != nil {
		f.err = fmt.Errorf("read keys of %s: %w", f.name, err)
		return
	}
	f.ring, f.info, f.err = ring, info, nil
}

// latest returns the keys, and the error of the latest attempt to read the file.
func (f *File) latest() (*Ring, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.checked) >= f.every {
		f.read()
	}
	return f.ring, f.err
}

// IDs returns the ids of the keys that the file has, sorted.
func (f *File) IDs() []string {
	ring, _ := f.latest()
	return ring.IDs()
}

// SealingKey returns the first key of the file.
func (f *File) SealingKey(ctx context.Context, tenant uuid.NullUUID) (*Key, error) {
	ring, _ := f.latest()
	return ring.SealingKey(ctx, tenant)
}

// OpeningKey returns the key of the file with id.
func (f *File) OpeningKey(ctx context.Context, tenant uuid.NullUUID, id string) (*Key, error) {
	ring, err := f.latest()
	k, missing := ring.OpeningKey(ctx, tenant, id)
	if errors.Is(missing, ErrNoKey) && err != nil {
		return nil, err
	}
	return k, missing
}

// FromDir returns a keyring with keys for each tenant, from a folder: those of a tenant are in the file TENANT.keys, for
// example 018f3a70-0000-7000-8000-000000000001.keys, and those of events without a tenant in shared.keys. A tenant
// without a file has no keys. To forget a tenant, replace the secrets in its file by the word destroyed: its events
// become dead letters where they wait. The files are read as by FromFile.
func FromDir(dir string) (Keyring, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("read keys: %s is not a folder", dir)
	}
	d := &folder{dir: dir, files: make(map[string]*File)}
	return PerTenant(func(_ context.Context, tenant uuid.UUID) (Keyring, error) {
		k, err := d.file(tenant.String() + ".keys")
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("tenant %s has no file of keys in %s: %w", tenant, dir, ErrNoKey)
		}
		return k, err
	}, sharedOf{d}), nil
}

// folder are the files of keys that were read so far.
type folder struct {
	dir   string
	mu    sync.Mutex
	files map[string]*File
}

func (d *folder) file(name string) (Keyring, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.files[name]; f != nil {
		return f, nil
	}
	f, err := FromFile(filepath.Join(d.dir, name))
	if err != nil {
		return nil, err
	}
	d.files[name] = f
	return f, nil
}

// sharedOf are the keys of events without a tenant. Their file may come later.
type sharedOf struct{ d *folder }

func (s sharedOf) keyring() (Keyring, error) {
	k, err := s.d.file("shared.keys")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the event has no tenant, and %s has no file shared.keys: %w", s.d.dir, ErrNoKey)
	}
	return k, err
}

func (s sharedOf) SealingKey(ctx context.Context, tenant uuid.NullUUID) (*Key, error) {
	k, err := s.keyring()
	if err != nil {
		return nil, err
	}
	return k.SealingKey(ctx, tenant)
}

func (s sharedOf) OpeningKey(ctx context.Context, tenant uuid.NullUUID, id string) (*Key, error) {
	k, err := s.keyring()
	if err != nil {
		return nil, err
	}
	return k.OpeningKey(ctx, tenant, id)
}

package seal_test

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/seal"
)

var none uuid.NullUUID

func secret(c string) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(c, seal.KeyBytes)))
}

// sealsWith returns the id of the key that k seals with.
func sealsWith(t *testing.T, k seal.Keyring, tenant uuid.NullUUID) string {
	t.Helper()
	got, err := k.SealingKey(t.Context(), tenant)
	require.NoError(t, err)
	return got.ID()
}

func TestParse(t *testing.T) {
	t.Parallel()
	r, err := seal.Parse("# the newest is first\nk3:" + secret("c") + " # since May\n\nk2:" + strings.TrimRight(secret("\xff"), "=") +
		",k1:destroyed\n")
	require.NoError(t, err)
	require.Equal(t, "k3", sealsWith(t, r, none))
	require.Equal(t, []string{"k2", "k3"}, r.IDs())
	k2, err := r.OpeningKey(t.Context(), none, "k2")
	require.NoError(t, err)
	require.Equal(t, "k2", k2.ID())
	_, err = r.OpeningKey(t.Context(), none, "k1")
	require.ErrorIs(t, err, seal.ErrDestroyed)
	_, err = r.OpeningKey(t.Context(), none, "k0")
	require.ErrorIs(t, err, seal.ErrNoKey)

	gone, err := seal.Parse("k1:destroyed")
	require.NoError(t, err)
	_, err = gone.SealingKey(t.Context(), none)
	require.ErrorIs(t, err, seal.ErrDestroyed)

	for text, want := range map[string]string{
		"":                                     "there are no keys: write an entry of the form ID:SECRET, with the secret of `openssl rand -base64 32`",
		"canary":                               "entry 1 of the keys: it does not have the form ID:SECRET",
		"k1:" + secret("a") + " canary":        "entry 2 of the keys: it does not have the form ID:SECRET",
		"k1:can!ary":                           "entry 1 of the keys: the secret of key k1 is not base64",
		"k1:Y2FuYXJ5":                          "entry 1 of the keys: key k1 has 6 bytes, not 32",
		"k1:" + secret("a") + "\nk1:destroyed": "entry 2 of the keys: the key id k1 is there twice",
	} {
		_, err := seal.Parse(text)
		require.EqualError(t, err, want, text)
	}
}

func TestNewRingRefuses(t *testing.T) {
	t.Parallel()
	_, err := seal.NewRing(nil)
	require.EqualError(t, err, "new keyring: no key given (nil)")
	_, err = seal.NewRing(key(t, "k1"), nil)
	require.EqualError(t, err, "new keyring: one of the keys is nil")
	_, err = seal.NewRing(key(t, "k1"), key(t, "k1"))
	require.EqualError(t, err, "new keyring: two keys have the id k1")
}

func TestFromEnv(t *testing.T) {
	t.Setenv("OUTBOX_TEST_KEYS", "k1:"+secret("a"))
	r, err := seal.FromEnv("OUTBOX_TEST_KEYS")
	require.NoError(t, err)
	require.Equal(t, "k1", sealsWith(t, r, none))
	_, err = seal.FromEnv("OUTBOX_TEST_NO_KEYS")
	require.EqualError(t, err, "read keys: the environment variable OUTBOX_TEST_NO_KEYS is not set")
	t.Setenv("OUTBOX_TEST_KEYS", "k1")
	_, err = seal.FromEnv("OUTBOX_TEST_KEYS")
	require.EqualError(t, err,
		"read keys of the environment variable OUTBOX_TEST_KEYS: entry 1 of the keys: it does not have the form ID:SECRET")
}

// write replaces a file by a rename.
func write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(name+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(name+".new", name))
}

// TestFileIsReadAgain: a key that is added to the file is there without a restart, and a file that is broken leaves the
// keys that were read.
func TestFileIsReadAgain(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "keys")
	write(t, name, "k1:"+secret("a"))
	f, err := seal.FromFile(name)
	require.NoError(t, err)
	seal.CheckAlways(f)
	_, err = f.OpeningKey(t.Context(), none, "k2")
	require.ErrorIs(t, err, seal.ErrNoKey)

	write(t, name, "k2:"+secret("b")+"\nk1:"+secret("a"))
	require.Equal(t, "k2", sealsWith(t, f, none))
	_, err = f.OpeningKey(t.Context(), none, "k1")
	require.NoError(t, err)

	write(t, name, "what")
	require.Equal(t, "k2", sealsWith(t, f, none))
	_, err = f.OpeningKey(t.Context(), none, "k1")
	require.NoError(t, err)
	_, err = f.OpeningKey(t.Context(), none, "k3")
	require.ErrorContains(t, err, "entry 1 of the keys: it does not have the form ID:SECRET")

	require.NoError(t, os.Remove(name))
	require.Equal(t, "k2", sealsWith(t, f, none))
	write(t, name, "k3:"+secret("c")+" k2:destroyed")
	_, err = f.OpeningKey(t.Context(), none, "k2")
	require.ErrorIs(t, err, seal.ErrDestroyed)

	_, err = seal.FromFile(name + ".gone")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestFromDir: each tenant has its own keys, and one whose keys were destroyed has none.
func TestFromDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := uuid.NullUUID{UUID: uuid.New(), Valid: true}, uuid.NullUUID{UUID: uuid.New(), Valid: true}
	write(t, filepath.Join(dir, a.UUID.String()+".keys"), "a1:"+secret("a"))
	k, err := seal.FromDir(dir)
	require.NoError(t, err)
	require.Equal(t, "a1", sealsWith(t, k, a))
	_, err = k.SealingKey(t.Context(), b)
	require.ErrorIs(t, err, seal.ErrNoKey)
	require.ErrorContains(t, err, b.UUID.String())
	_, err = k.OpeningKey(t.Context(), b, "a1")
	require.ErrorIs(t, err, seal.ErrNoKey, "the key of another tenant")
	_, err = k.SealingKey(t.Context(), none)
	require.ErrorIs(t, err, seal.ErrNoKey)

	write(t, filepath.Join(dir, b.UUID.String()+".keys"), "b1:destroyed")
	write(t, filepath.Join(dir, "shared.keys"), "s1:"+secret("s"))
	_, err = k.OpeningKey(t.Context(), b, "b1")
	require.ErrorIs(t, err, seal.ErrDestroyed)
	require.Equal(t, "s1", sealsWith(t, k, none))
	opened, err := k.OpeningKey(t.Context(), none, "s1")
	require.NoError(t, err)
	require.Equal(t, "s1", opened.ID())

	_, err = seal.FromDir(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = seal.FromDir(filepath.Join(dir, "shared.keys"))
	require.ErrorContains(t, err, "is not a folder")
}

func TestPerTenant(t *testing.T) {
	t.Parallel()
	ring, err := seal.NewRing(key(t, "own"))
	require.NoError(t, err)
	outage := errors.New("no answer")
	k := seal.PerTenant(func(_ context.Context, id uuid.UUID) (seal.Keyring, error) {
		switch id {
		case tenant.UUID:
			return ring, nil
		case event:
			return nil, outage
		}
		return nil, nil
	}, nil)
	require.Equal(t, "own", sealsWith(t, k, tenant))
	_, err = k.SealingKey(t.Context(), uuid.NullUUID{UUID: event, Valid: true})
	require.ErrorIs(t, err, outage)
	_, err = k.SealingKey(t.Context(), uuid.NullUUID{UUID: uuid.New(), Valid: true})
	require.ErrorIs(t, err, seal.ErrNoKey)
	_, err = k.OpeningKey(t.Context(), none, "own")
	require.ErrorIs(t, err, seal.ErrNoKey)
}

func TestContext(t *testing.T) {
	t.Parallel()
	require.Nil(t, seal.KeyringFromContext(t.Context()))
	k := seal.ForTests()
	require.Equal(t, k, seal.KeyringFromContext(seal.ContextWithKeyring(t.Context(), k)))
	require.Equal(t, "for-tests-only", sealsWith(t, k, none))
}

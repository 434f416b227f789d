package seal_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/seal"
)

var (
	event  = uuid.MustParse("018f3a70-0000-7000-8000-000000000001")
	tenant = uuid.NullUUID{UUID: uuid.MustParse("018f3a70-0000-7000-8000-0000000000aa"), Valid: true}
)

// key returns a key with a secret that is made of its id.
func key(t testing.TB, id string) *seal.Key {
	t.Helper()
	k, err := seal.NewKey(id, []byte(strings.Repeat(id, seal.KeyBytes)[:seal.KeyBytes]))
	require.NoError(t, err)
	return k
}

func box(t testing.TB, k *seal.Key, event uuid.UUID, tenant uuid.NullUUID) *seal.Box {
	t.Helper()
	b, err := k.For(event, tenant)
	require.NoError(t, err)
	return b
}

// TestVector: the values of docs/run/sealed.md open, so that other languages can be tested with them.
func TestVector(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/run/sealed.md")
	require.NoError(t, err)
	secret := make([]byte, seal.KeyBytes)
	for i := range secret {
		secret[i] = byte(i)
	}
	k, err := seal.NewKey("k1", secret)
	require.NoError(t, err)
	for _, c := range []struct {
		tenant       uuid.NullUUID
		path, sealed string
		value        string
	}{
		{tenant, "/email", "sealed:v1:k1:yLldLPb1tmrKgHpYxaKggns1eDBmn0GAsxYp9_Jmq0IRRXiweDqk8u8H0cPRvg", `"anna@example.com"`},
		{uuid.NullUUID{}, "/$sealed", "sealed:v1:k1:HjA9HLWxQ6X38ovT6BxwlID0cse95jn98mplgnSYPgpF0DxJI0ksK6A", `{"text":"hi"}`},
	} {
		require.Contains(t, string(doc), c.sealed)
		got, err := box(t, k, event, c.tenant).Open(c.path, c.sealed)
		require.NoError(t, err)
		require.Equal(t, c.value, string(got))
	}
}

// TestBoundToItsPlace: a value opens with its key at its place, and nowhere else.
func TestBoundToItsPlace(t *testing.T) {
	t.Parallel()
	k := key(t, "k1")
	sealed := box(t, k, event, tenant).Seal("/email", []byte(`"x"`))
	require.Regexp(t, `^sealed:v1:k1:[A-Za-z0-9_-]{38,}$`, sealed)
	got, err := box(t, k, event, tenant).Open("/email", sealed)
	require.NoError(t, err)
	require.Equal(t, `"x"`, string(got))

	other, err := seal.NewKey("k1", bytes.Repeat([]byte{7}, seal.KeyBytes))
	require.NoError(t, err)
	altered := []byte(sealed)
	altered[len(altered)-2] ^= 1
	for name, open := range map[string]func() ([]byte, error){
		"another event": func() ([]byte, error) { return box(t, k, uuid.New(), tenant).Open("/email", sealed) },
		"another tenant": func() ([]byte, error) {
			return box(t, k, event, uuid.NullUUID{UUID: event, Valid: true}).Open("/email", sealed)
		},
		"no tenant":     func() ([]byte, error) { return box(t, k, event, uuid.NullUUID{}).Open("/email", sealed) },
		"another field": func() ([]byte, error) { return box(t, k, event, tenant).Open("/phone", sealed) },
		"another key":   func() ([]byte, error) { return box(t, other, event, tenant).Open("/email", sealed) },
		"another id":    func() ([]byte, error) { return box(t, key(t, "k2"), event, tenant).Open("/email", sealed) },
		"altered":       func() ([]byte, error) { return box(t, k, event, tenant).Open("/email", string(altered)) },
		"cut":           func() ([]byte, error) { return box(t, k, event, tenant).Open("/email", sealed[:30]) },
		"not base64":    func() ([]byte, error) { return box(t, k, event, tenant).Open("/email", sealed+"=") },
	} {
		_, err := open()
		require.ErrorIs(t, err, seal.ErrAltered, name)
	}
	require.NotEqual(t, sealed, box(t, k, event, tenant).Seal("/email", []byte(`"x"`)), "each has its own nonce")
}

func TestKeyID(t *testing.T) {
	t.Parallel()
	id, err := seal.KeyID("sealed:v1:k-1._~:abc")
	require.NoError(t, err)
	require.Equal(t, "k-1._~", id)
	for text, want := range map[string]error{
		"":                        seal.ErrNotSealed,
		"anna@example.com":        seal.ErrNotSealed,
		"sealed:":                 seal.ErrNotSealed,
		"sealed:v1:":              seal.ErrNotSealed,
		"sealed:v1:k1":            seal.ErrNotSealed,
		"sealed:v1:k1:":           seal.ErrNotSealed,
		"sealed:v1::abc":          seal.ErrNotSealed,
		"sealed:v1:k 1:abc":       seal.ErrNotSealed,
		"sealed:v0:k1:abc":        seal.ErrNotSealed,
		"sealed:vx:k1:abc":        seal.ErrNotSealed,
		"sealed:tomorrow":         seal.ErrNotSealed,
		"sealed:v2:k1:abc":        seal.ErrNewer,
		"sealed:v12:what ever it": seal.ErrNewer,
		"sealed:v1:" + strings.Repeat("k", 1025) + ":abc": seal.ErrNotSealed,
	} {
		_, err := seal.KeyID(text)
		require.ErrorIs(t, err, want, text)
	}
}

// TestKeysShowNoSecret: whatever prints a key prints its id.
func TestKeysShowNoSecret(t *testing.T) {
	t.Parallel()
	k, err := seal.NewKey("k1", []byte("canary-canary-canary-canary-----"))
	require.NoError(t, err)
	ring, err := seal.NewRing(k)
	require.NoError(t, err)
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		fmt.Fprintf(&out, verb+verb+verb, k, *k, []seal.Key{*k})
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("key", "key", k, "value", *k)
	encoded, err := json.Marshal(map[string]any{"k": k, "v": *k})
	require.NoError(t, err)
	out.Write(encoded)
	fmt.Fprintf(&out, "%v", ring)
	require.NotContains(t, out.String(), "canary")
	require.NotContains(t, out.String(), "63616e617279")
	require.NotContains(t, out.String(), "99 97 110")
	require.Contains(t, out.String(), "k1")
}

func TestNewKeyRefuses(t *testing.T) {
	t.Parallel()
	secret := make([]byte, seal.KeyBytes)
	for id, want := range map[string]string{
		"":                        `key id "" is not made of ASCII letters, digits, '.', '_', '~' and '-'`,
		"a:b":                     `key id "a:b" is not made of ASCII letters, digits, '.', '_', '~' and '-'`,
		strings.Repeat("a", 1025): "key id has 1025 bytes of at most 1024",
	} {
		_, err := seal.NewKey(id, secret)
		require.EqualError(t, err, want)
	}
	_, err := seal.NewKey("k1", secret[1:])
	require.EqualError(t, err, "key k1 has 31 bytes, not 32")
}

func FuzzOpen(f *testing.F) {
	k := key(f, "k1")
	f.Add("/a", box(f, k, event, tenant).Seal("/a", []byte("1")))
	f.Add("/a", "sealed:v1:k1:AAAA")
	f.Add("", "sealed:v2:k1:AAAA")
	f.Fuzz(func(t *testing.T, path, text string) {
		id, err := seal.KeyID(text)
		if err != nil {
			return
		}
		if value, err := box(t, key(t, id), event, tenant).Open(path, text); err == nil {
			require.Equal(t, "/a", path)
			require.Equal(t, "1", string(value))
		}
	})
}

package seal_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/seal"
)

// service is a Keyring whose keys an external service has wrapped. The service makes a key, and returns it with its
// wrapped form, which becomes the id. So nothing is stored: whoever wants to open a value sends the id to the service. The
// service has a master key per tenant. Without it, nobody can open the values of the tenant.
type service struct {
	url string

	mu      sync.Mutex
	current map[uuid.NullUUID]*seal.Key // that seals, by tenant
	until   map[uuid.NullUUID]time.Time
	opened  map[string]*seal.Key // by id
}

func newService(url string) *service {
	return &service{
		url: url, current: make(map[uuid.NullUUID]*seal.Key), until: make(map[uuid.NullUUID]time.Time),
		opened: make(map[string]*seal.Key),
	}
}

// SealingKey returns the key of this hour, which the service has made.
func (s *service) SealingKey(ctx context.Context, tenant uuid.NullUUID) (*seal.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.current[tenant] == nil || now.After(s.until[tenant]) {
		k, err := s.ask(ctx, "wrap", tenant, "")
		if err != nil {
			return nil, err
		}
		s.current[tenant], s.until[tenant] = k, now.Add(time.Hour)
	}
	return s.current[tenant], nil
}

// OpeningKey returns the key that the service unwraps from its id. A cache that lives for long would open the values of a
// tenant whose master key was destroyed: keep it as short as that may take.
func (s *service) OpeningKey(ctx context.Context, tenant uuid.NullUUID, id string) (*seal.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.opened[id]; k != nil {
		return k, nil
	}
	k, err := s.ask(ctx, "unwrap", tenant, id)
	if err != nil {
		return nil, err
	}
	if len(s.opened) >= 1000 {
		clear(s.opened)
	}
	s.opened[id] = k
	return k, nil
}

// ask calls the service.
func (s *service) ask(ctx context.Context, what string, tenant uuid.NullUUID, id string) (*seal.Key, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // the transaction of an enqueue is open
	defer cancel()
	query := url.Values{"tenant": {tenant.UUID.String()}, "id": {id}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/"+what+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the key service: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusGone:
		return nil, seal.ErrDestroyed
	case http.StatusNotFound:
		return nil, seal.ErrNoKey
	default:
		return nil, fmt.Errorf("ask the key service: %s", resp.Status)
	}
	var answer struct {
		ID  string
		Key []byte
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("ask the key service: %w", err)
	}
	return seal.NewKey(answer.ID, answer.Key)
}

// keyService stands for the service: Vault, or that of a cloud. It has the master keys, and they never leave it.
type keyService struct {
	mu      sync.Mutex
	masters map[string][]byte // by tenant; nil if it was destroyed
	calls   int
}

func (s *keyService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	tenant := r.FormValue("tenant")
	master, known := s.masters[tenant]
	switch {
	case !known:
		master = make([]byte, seal.KeyBytes)
		_, _ = rand.Read(master)
		s.masters[tenant] = master
	case master == nil:
		w.WriteHeader(http.StatusGone)
		return
	}
	block, err := aes.NewCipher(master)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	gcm, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	var key []byte
	id := r.FormValue("id")
	if r.URL.Path == "/wrap" {
		key = make([]byte, seal.KeyBytes)
		_, _ = rand.Read(key)
		id = "wrapped." + base64.RawURLEncoding.EncodeToString(gcm.Seal(nil, nil, key, nil))
	} else {
		wrapped, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(id, "wrapped."))
		if err == nil {
			key, err = gcm.Open(nil, nil, wrapped, nil)
		}
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"ID": id, "Key": key})
}

// Example_keyService seals with a key that an external service has wrapped. Another process opens the value with nothing but
// the service.
func Example_keyService() {
	server := httptest.NewServer(&keyService{masters: make(map[string][]byte)})
	defer server.Close()
	ctx := context.Background()
	event, tenant := uuid.New(), uuid.NullUUID{UUID: uuid.New(), Valid: true}

	producer := newService(server.URL)
	key, err := producer.SealingKey(ctx, tenant)
	if err != nil {
		fmt.Println(err)
		return
	}
	box, err := key.For(event, tenant) // what an enqueue does
	if err != nil {
		fmt.Println(err)
		return
	}
	sealed := box.Seal("/email", []byte(`"anna@example.com"`))

	consumer := newService(server.URL)
	id, err := seal.KeyID(sealed) // what a handler does
	if err != nil {
		fmt.Println(err)
		return
	}
	if key, err = consumer.OpeningKey(ctx, tenant, id); err != nil {
		fmt.Println(err)
		return
	}
	if box, err = key.For(event, tenant); err != nil {
		fmt.Println(err)
		return
	}
	value, err := box.Open("/email", sealed)
	fmt.Println(string(value), err)
	// Output: "anna@example.com" <nil>
}

// TestKeyServiceIsAskedOnce: keys are kept, and a tenant whose master key was destroyed is forgotten.
func TestKeyServiceIsAskedOnce(t *testing.T) {
	t.Parallel()
	fake := &keyService{masters: make(map[string][]byte)}
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	k := newService(server.URL)
	for range 10 {
		key, err := k.SealingKey(t.Context(), tenant)
		require.NoError(t, err)
		_, err = k.OpeningKey(t.Context(), tenant, key.ID())
		require.NoError(t, err)
	}
	require.Equal(t, 2, fake.calls)
	key, err := k.SealingKey(t.Context(), tenant)
	require.NoError(t, err)
	_, err = newService(server.URL).OpeningKey(t.Context(), uuid.NullUUID{UUID: event, Valid: true}, key.ID())
	require.ErrorIs(t, err, seal.ErrNoKey, "the key of another tenant")
	fake.masters[tenant.UUID.String()] = nil
	_, err = newService(server.URL).OpeningKey(t.Context(), tenant, key.ID())
	require.ErrorIs(t, err, seal.ErrDestroyed)
}

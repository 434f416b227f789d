// Package keyservice shows a keyring whose keys an external service wraps, like Vault or that of a cloud: Keyring is the
// side of producers and consumers, and Server stands for the service.
//
// A data key seals values. The service makes it, and returns it together with its wrapped form, which only the service can
// open: with the master key of the tenant, which never leaves it. The wrapped form is the id of the data key, which each
// sealed value names. So nobody stores data keys. Without the master key, nobody can open the values of the tenant any
// more, wherever they are: in tables, brokers and backups.
package keyservice

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/seal"
)

const (
	// DefaultKeep is the Keep of a Keyring that does not set one.
	DefaultKeep = 5 * time.Minute
	// askFor bounds a call of the service, because the transaction of an enqueue is open meanwhile.
	askFor = 2 * time.Second
	// most is how many data keys a Keyring remembers.
	most = 10_000
)

// Keyring asks the service at URL for data keys. It may be used concurrently, and must not be copied after its first use.
type Keyring struct {
	URL string
	// Keep is how long a data key is used from memory; 0 means DefaultKeep. A service that is away is not noticed for so
	// long, and a tenant whose master key was destroyed is forgotten after that time.
	Keep time.Duration
	// Client calls the service; nil means http.DefaultClient. One that signs its requests belongs here.
	Client *http.Client

	mu   sync.Mutex
	keys map[entryOf]*entry
}

// entryOf identifies a data key that is remembered: that which seals for a tenant has no id.
type entryOf struct {
	tenant uuid.NullUUID
	id     string
}

// entry is a data key that is remembered. While one caller asks the service for it, others wait for the answer.
type entry struct {
	mu    sync.Mutex
	key   *seal.Key
	until time.Time
}

// SealingKey returns the data key with which values of tenant are sealed now.
func (k *Keyring) SealingKey(ctx context.Context, tenant uuid.NullUUID) (*seal.Key, error) {
	return k.remembered(ctx, "wrap", entryOf{tenant: tenant})
}

// OpeningKey returns the data key that the service unwraps from its id.
func (k *Keyring) OpeningKey(ctx context.Context, tenant uuid.NullUUID, id string) (*seal.Key, error) {
	return k.remembered(ctx, "unwrap", entryOf{tenant, id})
}

// remembered returns a data key from memory, or asks for it.
func (k *Keyring) remembered(ctx context.Context, what string, of entryOf) (*seal.Key, error) {
	e := k.entry(of)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.key != nil && time.Now().Before(e.until) {
		return e.key, nil
	}
	key, err := k.ask(ctx, what, of)
	if err != nil {
		return nil, err
	}
	keep := k.Keep
	if keep == 0 {
		keep = DefaultKeep
	}
	e.key, e.until = key, time.Now().Add(keep)
	return key, nil
}

func (k *Keyring) entry(of entryOf) *entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.keys[of]; e != nil {
		return e
	}
	if k.keys == nil || len(k.keys) >= most {
		k.keys = make(map[entryOf]*entry) // who has one of the old entries goes on with it
	}
	e := new(entry)
	k.keys[of] = e
	return e
}

// question and answer are the bodies of a call. They are not in the URL, which servers and proxies log.
type (
	question struct {
		Tenant uuid.NullUUID `json:"tenant"`
		ID     string        `json:"id,omitempty"`
	}
	answer struct {
		ID  string `json:"id"`
		Key []byte `json:"key"`
	}
)

// ask calls the service. A status says what an error means: an event whose master key is gone for good becomes a dead
// letter, one whose key is not known waits for it, and any other answer is an outage, in which the topic rests.
func (k *Keyring) ask(ctx context.Context, what string, of entryOf) (*seal.Key, error) {
	body, err := json.Marshal(question{of.tenant, of.id})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, k.URL+"/"+what, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask the key service: %w", err)
	}
	client := k.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
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
	var a answer
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		return nil, fmt.Errorf("ask the key service: %w", err)
	}
	return seal.NewKey(a.ID, a.Key)
}

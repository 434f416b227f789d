package keyservice

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/seal"
)

// Server stands for the service. It has a master key for each tenant, in memory, and makes one for a tenant that it sees
// for the first time. A real one keeps them in hardware, knows who may ask for which tenant, and records who has asked.
// The zero value is ready.
type Server struct {
	mu      sync.Mutex
	masters map[uuid.NullUUID]cipher.AEAD // nil if it was destroyed
	calls   int
}

// Destroy destroys the master key of a tenant. Nobody can open its values from then on.
func (s *Server) Destroy(tenant uuid.NullUUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.master(tenant)
	s.masters[tenant] = nil
}

// Calls returns how often the service was asked.
func (s *Server) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// master returns the master key of a tenant, nil if it was destroyed. The caller has the lock.
func (s *Server) master(tenant uuid.NullUUID) cipher.AEAD {
	if _, known := s.masters[tenant]; !known {
		if s.masters == nil {
			s.masters = make(map[uuid.NullUUID]cipher.AEAD)
		}
		s.masters[tenant] = newMaster()
	}
	return s.masters[tenant]
}

func newMaster() cipher.AEAD {
	block, err := aes.NewCipher(random())
	if err != nil {
		panic(err) // the length of the key is right
	}
	master, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has the block size of GCM
	}
	return master
}

func random() []byte {
	key := make([]byte, seal.KeyBytes)
	_, _ = rand.Read(key) // it never returns an error
	return key
}

// wrapped is how the ids of data keys begin: with another service, or another version of its keys, it would be another text.
const wrapped = "wrapped."

// ServeHTTP answers POST /wrap with a new data key, and POST /unwrap with that of an id.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q question
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<14)).Decode(&q); err != nil {
		http.Error(w, "the body is not a question", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.calls++
	master := s.master(q.Tenant)
	s.mu.Unlock()
	if master == nil {
		http.Error(w, "the master key was destroyed", http.StatusGone)
		return
	}
	var a answer
	var err error
	switch r.Method + " " + r.URL.Path {
	case "POST /wrap":
		a.Key = random()
		a.ID = wrapped + base64.RawURLEncoding.EncodeToString(master.Seal(nil, nil, a.Key, nil))
	case "POST /unwrap":
		a.ID = q.ID
		a.Key, err = unwrap(master, q.ID)
	default:
		err = errors.New("there is nothing here")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a) // the client has gone
}

// unwrap returns the data key with an id.
func unwrap(master cipher.AEAD, id string) ([]byte, error) {
	text, ok := strings.CutPrefix(id, wrapped)
	if !ok {
		return nil, errors.New("the key is not of this service")
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, errors.New("the key is not of this service")
	}
	return master.Open(nil, nil, data, nil)
}

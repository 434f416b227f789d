package emit

import (
	"path"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/generator/model"
)

// Suffix ends the name of every generated file that is not a stub.
const Suffix = ".outbox.go"

// sharedTypesFile holds the shared types. No namespace can have this name: YAML names have no hyphen.
const sharedTypesFile = "shared-types" + Suffix

// maskFile holds the function that masks payloads. Its hyphen keeps it apart from the others, too.
const maskFile = "mask-payload" + Suffix

// IsCommon reports whether the file, of the output folder or of a sub-folder, has a name that files of any YAML may
// have.
func IsCommon(file string) bool {
	name := path.Base(file)
	return name == sharedTypesFile || name == maskFile
}

// fakeFile returns the name of the file of the fake of ns. No other file can have it, because of its hyphen.
func fakeFile(ns *model.Namespace) string { return ns.Name + "-fake" + Suffix }

func namespaceFile(ns *model.Namespace) string { return safeBase(ns.Name, "-ns") + Suffix }

// listenerPart is the part of a listener's file name where a topic's file has the name of the topic.
const listenerPart = "listener"

func listenerFile(l *model.Listener) string {
	return safeBase(l.Name, "-"+listenerPart) + "." + listenerPart + Suffix
}

// operationPart is the same in the file name of an operation.
const operationPart = "operation"

func operationFile(o *model.Operation) string {
	return safeBase(o.Name, "-"+operationPart) + "." + operationPart + Suffix
}

// topicFile returns the name of a topic's file. A topic called listener or operation gets a suffix, because its file
// would be that of a listener or operation with the name of the namespace.
func topicFile(t *model.Topic) string { return topicBase(t) + Suffix }

// pastFile returns the name of the file of an older version. No topic can have it: YAML names have no dot.
func pastFile(t *model.Topic, p *model.Past) string {
	return topicBase(t) + ".v" + strconv.Itoa(p.Version) + Suffix
}

func topicBase(t *model.Topic) string {
	name := t.Name
	if name == listenerPart || name == operationPart {
		name += "-topic"
	}
	return safeBase(t.Namespace.Name, "-ns") + "." + name
}

// safeBase returns the start of a generated file's name. A name that go build would restrict to one platform, or that
// Windows uses for a device, gets a suffix that no YAML name can have, so that no two names share a file.
func safeBase(name, end string) string {
	if isPlatform(name) || isDevice(name) {
		return name + end
	}
	return name
}

// isPlatform reports whether go build ignores name.go, or name.x.go, on some platforms: the rule of go/build for _GOOS,
// _GOARCH and a _test after them.
func isPlatform(name string) bool {
	parts := strings.Split(name, "_")
	if last := len(parts) - 1; parts[last] == "test" {
		parts = parts[:last]
	}
	return len(parts) > 1 && platforms[parts[len(parts)-1]]
}

// platforms are the GOOS and GOARCH values that go/build knows, past and future ones included. Source:
// internal/syslist of Go 1.26.
var platforms = set(
	"aix android darwin dragonfly freebsd hurd illumos ios js linux nacl netbsd openbsd plan9 solaris " +
		"wasip1 windows zos 386 amd64 amd64p32 arm armbe arm64 arm64be loong64 mips mipsle mips64 mips64le mips64p32 " +
		"mips64p32le ppc ppc64 ppc64le riscv riscv64 s390 s390x sparc sparc64 wasm")

// isDevice reports whether name, with any extension, is a device on Windows. The go command refuses modules with such
// files.
func isDevice(name string) bool { return devices[name] }

var devices = set("con prn aux nul com0 com1 com2 com3 com4 com5 com6 com7 com8 com9 " +
	"lpt0 lpt1 lpt2 lpt3 lpt4 lpt5 lpt6 lpt7 lpt8 lpt9")

func set(words string) map[string]bool {
	members := make(map[string]bool)
	for word := range strings.FieldsSeq(words) {
		members[word] = true
	}
	return members
}

// stubNames gives stubs their file names, each once. A stub is named after its topic, namespace or listener. It gets a
// longer name if go build would treat the file as a test or restrict it to one platform, or if another stub has the
// name.
type stubNames struct{ taken map[string]bool }

func newStubNames() stubNames { return stubNames{taken: make(map[string]bool)} }

func (s stubNames) handlers(ns *model.Namespace) string {
	return s.take(ns.Name+"_handlers", ns.Name+"_handlers_ns")
}

func (s stubNames) handle(t *model.Topic) string {
	return s.handleAs("handle_", t)
}

func (s stubNames) listener(l *model.Listener) string {
	return s.take(l.Name+"_handlers", l.Name+"_handlers_listener")
}

// listen names the stub of one of l's topics: several listeners may read it.
func (s stubNames) listen(l *model.Listener, t *model.Topic) string {
	return s.handleAs(l.Name+"_handle_", t)
}

func (s stubNames) handleAs(prefix string, t *model.Topic) string {
	name := t.Name
	if strings.ReplaceAll(name, "_", "") != strings.ToLower(t.GoName) { // a go: override
		name = model.Snake(t.GoName)
	}
	return s.take(prefix+name, prefix+name+"_topic", prefix+t.Namespace.Name+"_"+name+"_topic")
}

// take returns the first usable candidate. It adds underscores to the last one until that is usable.
func (s stubNames) take(candidates ...string) string {
	for _, base := range candidates {
		if s.usable(base) {
			return s.use(base)
		}
	}
	base := candidates[len(candidates)-1]
	for !s.usable(base) {
		base += "_"
	}
	return s.use(base)
}

func (s stubNames) usable(base string) bool {
	return !s.taken[base] && !isPlatform(base) && !strings.HasSuffix(base, "_test")
}

func (s stubNames) use(base string) string {
	s.taken[base] = true
	return base + ".go"
}

package model

import (
	"path/filepath"
	"slices"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Load decodes source, an outbox.yaml that positions refer to as name, and builds its Model. It returns the findings of
// all rules, sorted. The Model is nil when one of them is an error.
func Load(source []byte, name string) (*Model, diag.List) { return LoadFor(source, name, ".") }

// LoadFor is Load with an output folder: a slash path from the root of its module, "." when it is not known.
func LoadFor(source []byte, name, folder string) (*Model, diag.List) {
	s, findings := spec.Decode(source, name)
	m, more := BuildFor(s, folder, nil)
	all := diag.Merge(findings, more)
	if all.HasErrors() {
		return nil, all
	}
	return m, all
}

// Build checks every rule of the model on s and returns the Model, or nil when a finding is an error. For a nil Spec,
// which Decode returns for a file that it could not read, it returns no Model and no findings. Build accepts a Spec
// that Decode had findings about, but the Model of such a Spec must not be used.
func Build(s *spec.Spec) (*Model, diag.List) { return BuildFor(s, ".", nil) }

// BuildFor is Build with an output folder, as LoadFor has, and with the frozen versions of topics, nil for none.
func BuildFor(s *spec.Spec, folder string, past History) (*Model, diag.List) {
	if s == nil {
		return nil, nil
	}
	b := &builder{
		Reporter: diag.NewReporter(s.File),
		model:    &Model{Source: filepath.Base(s.File), Package: s.Package.V, Schema: "outbox"},
		folder:   folder,
		past:     past,
		types:    make(map[string]*Type),
		enums:    make(map[*Type]bool),
		topics:   make(map[string]*Topic),
		meant:    make(map[string]bool),

		unreadable: make(map[*Topic]bool),
		undecided:  make(map[*Topic]bool),
		names:      make(map[*Topic]*decl),
	}
	b.UseHints(s.Hints)
	b.goNames = b.newSymbols()
	b.consumerNames = b.newSymbols()
	b.consumerNames.told = b.goNames.told
	if s.Schema.Set() {
		b.model.Schema = s.Schema.V
	}
	b.checkPackage(s.Package)
	b.checkSchema(s.Schema)
	b.goNames.declare(&decl{
		what: "a field of the fakes for tests", pos: s.Package.Pos, others: "rename it, or set its go: name",
	}, "DB")
	b.goNames.declare(&decl{
		what: "the function that masks payloads", pos: s.Package.Pos, others: "rename it, or set its go: name",
	}, MaskPayload)
	b.consumer(s)
	b.defaults = b.override(builtIn, &s.Defaults, "defaults")
	b.model.Retry = b.defaults.retry
	b.horizon(b.defaults, &s.Defaults, "defaults")
	b.short(b.defaults.retry, &s.Defaults.Retry, "defaults")
	b.sharedTypes(s.Types.Items)
	for _, n := range s.Namespaces.Items {
		b.namespace(n)
	}
	for i, n := range s.Namespaces.Items {
		b.renamed(n, b.model.Namespaces[i])
	}
	b.wireNames(s)
	b.listeners(s.Listeners.Items)
	b.operations(s.Operations.Items)
	b.readers(s)
	b.consumed(s)
	b.checkMethods()
	findings := b.Findings()
	if findings.HasErrors() {
		return nil, findings
	}
	return b.model, findings
}

// MaskPayload is the Go name of the generated function that masks payloads.
const MaskPayload = "MaskPayload"

// builder is one run of Build.
type builder struct {
	*diag.Reporter
	model         *Model
	folder        string // of the output
	past          History
	defaults      policy
	types         map[string]*Type // by YAML name
	typeNames     []string         // built-in and shared, for suggestions
	enums         map[*Type]bool   // the types with an enum, even an empty or refused one
	topics        map[string]*Topic
	topicNames    []string         // for suggestions
	logNames      []string         // the log topics, for suggestions
	meant         map[string]bool  // topics whose name a listener has misspelt, by full name
	unsure        bool             // a listener has topics that could not be read
	unreadable    map[*Topic]bool  // topics whose payload could not be read
	undecided     map[*Topic]bool  // topics whose delivery could not be read
	names         map[*Topic]*decl // of the topics that have a GoName
	goNames       *symbols         // of the package
	consumerNames *symbols         // of the consumer package
	structs       []structure
}

// isEnum reports whether t is declared as an enum. Its values may have been refused.
func (b *builder) isEnum(t *Type) bool { return b.enums[t] }

// sharedTypes builds the types. It declares all names first, so that a field can use a type that is declared later.
func (b *builder) sharedTypes(specs []*spec.Type) {
	for _, kind := range scalars {
		b.typeNames = append(b.typeNames, string(kind))
	}
	for _, s := range specs {
		t := &Type{Name: s.Name.V, Doc: PlainText(s.Doc.V)}
		b.model.Types = append(b.model.Types, t)
		b.types[t.Name] = t
		b.enums[t] = s.Enum.Set()
		if s.Scalar.Set() {
			t.Scalar = &Field{Type: TypeRef{Kind: Kind(s.Scalar.V)}}
		}
		if !b.checkName(s.Name, "type") {
			continue
		}
		if slices.Contains(scalars, Kind(t.Name)) {
			b.Errorf(s.Name.Pos, diag.NameCollision, "type %s has the name of a built-in type: choose another name", t.Name)
			continue
		}
		b.typeNames = append(b.typeNames, t.Name)
		t.GoName = b.goName(s.Name, s.Go)
		self := &decl{what: "type " + t.Name, pos: nameOrGo(s.Name, s.Go)}
		b.declareShared(self, t.GoName)
		if s.Enum.Set() {
			b.declareShared(self, t.GoName+"Values")
		}
		if s.Enum.Set() || s.Scalar.V == string(UUID) {
			b.declareShared(self, "Parse"+t.GoName)
		}
	}
	for i, s := range specs {
		t := b.model.Types[i]
		where := "type " + spec.Show(t.Name)
		t.Fields = b.fields(s.Fields.Items, where, "Validate")
		b.enumValues(s.Enum.Items, t, where)
		b.scalarBounds(s, t, where)
	}
	b.checkRecursion(specs)
}

func (b *builder) namespace(s *spec.Namespace) {
	n := &Namespace{Name: s.Name.V, Doc: PlainText(s.Doc.V), Stubs: !s.Stubs.Set()}
	b.model.Namespaces = append(b.model.Namespaces, n)
	named := b.checkName(s.Name, "namespace")
	if named {
		n.GoName = b.goName(s.Name, s.Go)
	}
	for _, topic := range s.Topics.Items {
		b.topic(topic, n)
	}
	if !named {
		return
	}
	self := &decl{what: "namespace " + n.Name, pos: nameOrGo(s.Name, s.Go)}
	if len(n.Topics) > 0 {
		b.goNames.declare(self, n.GoName+"Enqueuer", n.GoName+"Outbox", "Fake"+n.GoName, "NewFake"+n.GoName)
	}
	if len(n.Handled()) > 0 {
		b.goNames.declare(self, n.GoName+"Handlers", n.GoName+"Handler", "Unimplemented"+n.GoName+"Handlers")
		b.methods(n.Handled())
	}
	if len(n.QueueTopics()) > 0 {
		b.goNames.declare(self, "New"+n.GoName+"Dispatcher")
	}
	if b.model.Consumer != nil && len(n.Published()) > 0 {
		b.consumerNames.declare(self, n.GoName+"Consumer", "Unimplemented"+n.GoName+"Consumer", "New"+n.GoName+"Consumer")
	}
}

func (b *builder) topic(s *spec.Topic, n *Namespace) {
	t := &Topic{Namespace: n, Name: s.Name.V, Doc: PlainText(s.Doc.V), Version: 1, Delivery: Queue}
	n.Topics = append(n.Topics, t)
	where := "topic " + showTopic(t)
	b.topics[t.FullName()] = t
	b.topicNames = append(b.topicNames, t.FullName())
	b.unreadable[t] = !s.Payload.Set()
	if s.Version.Set() {
		t.Version = b.version(s.Version, where)
	}
	b.undecided[t] = s.Delivery.Bad
	if s.Delivery.Set() {
		t.Delivery = Delivery(s.Delivery.V)
	}
	if t.Delivery == Log {
		b.logNames = append(b.logNames, t.FullName())
	}
	p := b.override(b.defaults, &s.Policy, where)
	t.Retry, t.Lease, t.Retention, t.Wake = p.retry, p.lease, p.retention, p.wake
	t.Sealed = s.Sealed.V
	methods := []string{"Validate", "DedupeKey"}
	if t.Sealed {
		methods = append(methods, maskingMethods...)
	}
	t.Fields = b.fields(s.Payload.Items, where, methods...)
	b.tenant(s, t)
	b.dedupeKey(s, t)
	if t.Delivery == Queue && !b.undecided[t] {
		b.horizon(p, &s.Policy, where)
		b.short(p.retry, &s.Policy.Retry, where)
		b.dedupeWindow(s, t)
	}
	t.PartitionKey, _ = b.template(s.PartitionKey, t, partitionRules)
	b.fairness(s, t)
	b.topicLag(s, t)
	b.entity(s, t)
	b.publish(s, t)
	b.limits(s, t)
	b.topicBatch(s, t)
	if !b.checkName(s.Name, "topic") {
		return
	}
	t.GoName = b.goName(s.Name, s.Go)
	self := &decl{what: where, pos: nameOrGo(s.Name, s.Go)}
	b.names[t] = self
	b.goNames.declare(self, t.GoName, t.GoName+"Topic", "Enqueue"+t.GoName, "Enqueue"+t.GoName+"Many",
		"Enqueue"+t.GoName+"InBatch")
	if b.model.Consumer != nil && t.Publish != nil {
		b.consumerNames.declare(self, t.GoName, t.GoName+"Topic")
	}
	b.history(t, self)
}

// renamed sets the earlier names of the topics of n. Each name of a namespace belongs to one topic.
func (b *builder) renamed(s *spec.Namespace, n *Namespace) {
	first := make(map[string]diag.Pos)
	for i, topic := range s.Topics.Items {
		where := "topic " + showTopic(n.Topics[i])
		for _, name := range topic.RenamedFrom.Items {
			if !name.Set() || !b.checkName(name, "topic") {
				continue
			}
			earlier, twice := first[name.V]
			switch {
			case b.topics[n.Name+"/"+name.V] != nil:
				b.Errorf(name.Pos, diag.NameCollision,
					"renamed_from: %s in %s is the name of a topic of this namespace: remove that topic, or this name", name.V,
					where)
			case twice:
				b.Errorf(name.Pos, diag.NameCollision, "renamed_from: %s in %s is already an earlier name, at line %d", name.V,
					where, earlier.Line)
			default:
				first[name.V] = name.Pos
				n.Topics[i].Renamed = append(n.Topics[i].Renamed, name.V)
			}
		}
	}
}

// declareShared takes names for owner in both packages.
func (b *builder) declareShared(owner *decl, names ...string) {
	b.goNames.declare(owner, names...)
	if b.model.Consumer != nil {
		b.consumerNames.declare(owner, names...)
	}
}

func (b *builder) version(v spec.Value[int64], where string) int {
	if v.V < 1 || v.V > 1<<31-1 {
		b.Errorf(v.Pos, diag.VersionBounds, "version: %d of %s is not between 1 and %d", v.V, where, 1<<31-1)
		return 1
	}
	return int(v.V)
}

package model

import (
	"slices"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// keyRules are the rules of one of the keys that is given by a template.
type keyRules struct {
	key          string // as the YAML writes it
	unknown      diag.Rule
	optional     diag.Rule
	fieldType    diag.Rule
	sensitive    diag.Rule
	notInjective diag.Rule
}

var (
	dedupeRules = &keyRules{"dedupe_key", diag.DedupeUnknownField, diag.DedupeOptionalField,
		diag.DedupeFieldType, diag.DedupeSensitive, diag.DedupeNotInjective}
	partitionRules = &keyRules{"partition_key", diag.PartitionUnknownField, diag.PartitionOptional,
		diag.PartitionFieldType, diag.PartitionSensitive, diag.PartitionNotInjective}
	entityRules = &keyRules{"entity.id", diag.EntityUnknownField, diag.EntityOptionalField,
		diag.EntityFieldType, diag.EntitySensitive, diag.EntityNotInjective}
)

// keyKinds are the types that a key may use, in addition to enums and to shared scalars of these types. The others
// have no single text form (floats, JSON), no useful order (lists), or more precision than is kept (timestamps).
var keyKinds = map[Kind]bool{UUID: true, String: true, Int32: true, Int64: true, Date: true}

// template parses a key template of t and looks up its fields. It returns what could be parsed: everything
// without a finding, nil when there is nothing.
func (b *builder) template(text spec.Value[string], t *Topic, rules *keyRules) (*Template, pattern) {
	if !text.Set() {
		return nil, nil
	}
	where := "topic " + showTopic(t)
	parsed, err := parseTemplate(text.V)
	if err != nil {
		b.Errorf(text.Pos, diag.TemplateSyntax, "%s: the template of %s %s", rules.key, where, err)
		return nil, nil
	}
	if err := parsed.injective(); err != nil {
		b.Errorf(text.Pos, rules.notInjective, "%s: the template of %s %s", rules.key, where, err)
	}
	template := &Template{Text: text.V}
	seen := make(map[string]bool)
	for _, segment := range parsed {
		resolved := Segment{Prefix: segment.literals[0]}
		for i, name := range segment.fields {
			resolved.Suffix = segment.literals[i+1]
			if seen[name] {
				resolved.Field = t.field(name)
				continue
			}
			seen[name] = true
			resolved.Field = b.keyField(text.Pos, name, t, rules)
		}
		template.Segments = append(template.Segments, resolved)
	}
	return template, parsed
}

// keyField looks up a field of a template and reports why it cannot be part of a key.
func (b *builder) keyField(pos diag.Pos, name string, t *Topic, rules *keyRules) *Field {
	where := "topic " + showTopic(t)
	f := t.field(name)
	if f == nil {
		b.unknownField(pos, rules.unknown, rules.key, name, where, t)
		return nil
	}
	b.keyNeeds(pos, f, where, rules)
	enum := f.Type.Kind == Named && b.isEnum(f.Type.Type)
	switch {
	case f.Type.Kind != "" && !keyKinds[f.Type.Base()] && !enum:
		b.Errorf(pos, rules.fieldType, "%s: field %q of %s is a %s: use a uuid, string, int32, int64, date or enum field",
			rules.key, name, where, f.Type)
	case enum && f.Type.Type.hasEmptyValue():
		b.Errorf(pos, rules.fieldType, "%s: field %q of %s is a %s, which has an empty value: use an enum without one",
			rules.key, name, where, f.Type)
	}
	return f
}

// keyNeeds reports a field that is optional or sensitive.
func (b *builder) keyNeeds(pos diag.Pos, f *Field, where string, rules *keyRules) {
	if f.Optional {
		b.Errorf(pos, rules.optional, "%s: field %q of %s is optional: use a required field", rules.key, f.Name, where)
	}
	if !b.sealedIn(pos, rules.key, f, where) && f.Sensitive {
		b.Errorf(pos, rules.sensitive,
			"%s: field %q of %s is sensitive: use another field, because logs and the CLI show keys", rules.key, f.Name, where)
	}
}

// dedupeKey sets the dedupe key of t.
func (b *builder) dedupeKey(s *spec.Topic, t *Topic) {
	template, parsed := b.template(s.DedupeKey, t, dedupeRules)
	t.DedupeKey = template
	if parsed == nil || t.Tenant == nil {
		return
	}
	if !parsed.startsWith(t.Tenant.Name) {
		b.Errorf(s.DedupeKey.Pos, diag.DedupeTenantPrefix,
			"dedupe_key: must start with %q, the tenant of topic %s, followed by at least one more segment",
			"{"+t.Tenant.Name+"}/", showTopic(t))
		return
	}
	for _, segment := range parsed[1:] {
		if slices.ContainsFunc(segment.fields, func(name string) bool { return name != t.Tenant.Name }) {
			return
		}
	}
	b.Warnf(s.DedupeKey.Pos, diag.DedupeTenantOnly,
		"dedupe_key: all events of a tenant get the same key in topic %s, so only the first is kept: add a {field} that "+
			"tells them apart, unless this is intended", showTopic(t))
}

// entity sets the entity of t.
func (b *builder) entity(s *spec.Topic, t *Topic) {
	if !s.Entity.Pos.IsValid() {
		return
	}
	t.Entity = &Entity{Type: s.Entity.Type.V}
	if s.Entity.Type.Set() {
		b.checkName(s.Entity.Type, "entity type")
	}
	t.Entity.ID, _ = b.template(s.Entity.ID, t, entityRules)
	version := s.Entity.Version
	if !version.Set() {
		return
	}
	where := "topic " + showTopic(t)
	rules := *entityRules
	rules.key = "entity.version"
	f := t.field(version.V)
	if f == nil {
		b.unknownField(version.Pos, rules.unknown, rules.key, version.V, where, t)
		return
	}
	b.keyNeeds(version.Pos, f, where, &rules)
	if kind := f.Type.Base(); kind != "" && kind != Int32 && kind != Int64 {
		b.Errorf(version.Pos, diag.EntityVersionType, "%s: field %q of %s is a %s: use an int32 or int64", rules.key, f.Name,
			where, f.Type)
	}
	t.Entity.Version = f
}

// tenant sets the tenant of t. It reports a field that is not a required uuid.
func (b *builder) tenant(s *spec.Topic, t *Topic) {
	if !s.Tenant.Set() {
		return
	}
	where := "topic " + showTopic(t)
	f := t.field(s.Tenant.V)
	switch {
	case f == nil:
		b.unknownField(s.Tenant.Pos, diag.TenantUnknownField, "tenant", s.Tenant.V, where, t)
		return
	case f.Type.Kind == "":
		return
	case f.Type.Base() != UUID:
		b.Errorf(s.Tenant.Pos, diag.TenantNotUUID, "tenant: field %q of %s is a %s: use a required uuid", f.Name,
			where, f.Type)
		return
	case f.Optional:
		b.Errorf(s.Tenant.Pos, diag.TenantNotUUID, "tenant: field %q of %s is optional: use a required uuid", f.Name, where)
	}
	b.sealedIn(s.Tenant.Pos, "tenant", f, where)
	t.Tenant = f
}

// fairness sets the fairness of t. It reports one that t cannot have.
func (b *builder) fairness(s *spec.Topic, t *Topic) {
	if !s.Fairness.Set() {
		return
	}
	t.Fairness = Fairness(s.Fairness.V)
	switch {
	case t.Delivery == Log:
		b.Errorf(s.Fairness.Pos, diag.FairnessLogTopic,
			"fairness: topic %s has delivery log, whose events listeners get in order: remove fairness, which only applies to "+
				"a queue topic", showTopic(t))
	case !s.Tenant.Set() && !s.Tenant.Bad: // one that is wrong is reported as such
		b.Errorf(s.Fairness.Pos, diag.FairnessNeedsTenant,
			"fairness: topic %s has no tenant to give turns to: set tenant to a uuid field of its payload, or remove fairness",
			showTopic(t))
	}
}

// topicLag sets the max_lag of t. It reports one that t cannot have.
func (b *builder) topicLag(s *spec.Topic, t *Topic) {
	if !s.MaxLag.Set() {
		return
	}
	if t.Delivery == Log {
		b.Errorf(s.MaxLag.Pos, diag.TopicMaxLag,
			"max_lag: topic %s has delivery log: set max_lag of its listeners, each of which has a lag", showTopic(t))
		return
	}
	t.MaxLag = b.maxLag(s.MaxLag, diag.TopicMaxLag, "topic "+showTopic(t))
}

// maxLag returns v. It reports one that is too short.
func (b *builder) maxLag(v spec.Value[time.Duration], rule diag.Rule, where string) time.Duration {
	if v.V < minMaxLag {
		b.Errorf(v.Pos, rule, "max_lag: %s in %s is shorter than %s", showDuration(v.V), where, showDuration(minMaxLag))
	}
	return v.V
}

func (t *Topic) field(name string) *Field {
	for _, f := range t.Fields {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// unknownField reports that t has no field of that name, unless the fields of t could not be read.
func (b *builder) unknownField(pos diag.Pos, rule diag.Rule, key, name, where string, t *Topic) {
	if b.unreadable[t] {
		return
	}
	names := make([]string, len(t.Fields))
	for i, f := range t.Fields {
		names[i] = f.Name
	}
	hint := b.DidYouMean(strings.ReplaceAll(name, ".", "_"), names)
	if outer, _, dotted := strings.Cut(name, "."); dotted && t.field(outer) != nil {
		hint = " (only fields of the payload itself can be used: repeat the value in one)"
	}
	b.Errorf(pos, rule, "%s: unknown field %q in %s%s", key, name, where, hint)
}

func showTopic(t *Topic) string { return spec.Show(t.Namespace.Name) + "/" + spec.Show(t.Name) }

package policy

import (
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
)

func (p *parser) readServer(name, body *yaml.Node) {
	const what = "a server"
	before := len(p.problems)
	s := grants.Server{Name: name.Value, Hosted: true}
	p.entries(body, what, func(key, value *yaml.Node) {
		switch key.Value {
		case "command":
			p.items(value, "command", func(item *yaml.Node) {
				word, _ := p.text(item, "a word of command")
				s.Command = append(s.Command, word)
			})
		case "cwd":
			s.Cwd, _ = p.word(value, "cwd")
		case "url":
			s.URL, _ = p.word(value, "url")
		case "env":
			s.Env = p.variables(value, name.Value, "env")
		case "headers":
			s.Headers = p.variables(value, name.Value, "headers")
		default:
			p.unknown(key, what)
		}
	})
	if len(p.problems) > before {
		return
	}
	if err := s.Validate(); err != nil {
		p.report(name.Line, "server %s: %v", name.Value, err)
		return
	}
	p.places[place{AServer, name.Value, ""}] = name.Line
	if p.document.Servers == nil {
		p.document.Servers = map[string]grants.Server{}
	}
	p.document.Servers[name.Value] = s
}

// variables reads env or headers of a server. An empty mapping is none.
func (p *parser) variables(n *yaml.Node, server, what string) map[string]string {
	var all map[string]string
	p.entries(n, what, func(key, value *yaml.Node) {
		if all == nil {
			all = map[string]string{}
		}
		all[key.Value], _ = p.text(value, "a value in "+what)
		p.places[place{AServer, server, what + "." + key.Value}] = value.Line
	})
	return all
}

// checkServers judges the servers against the resources that they name.
func (p *parser) checkServers() {
	for _, name := range slices.Sorted(maps.Keys(p.document.Servers)) {
		s := p.document.Servers[name]
		for _, secret := range s.Secrets() {
			if _, known := p.resource(secret); !known {
				p.report(p.secretLine(&s, secret), "server %s: no resource %q; declare it under resources", name, secret)
			}
		}
	}
}

// secretLine is where a server names a secret.
func (p *parser) secretLine(s *grants.Server, secret string) int {
	for what, all := range map[string]map[string]string{"env": s.Env, "headers": s.Headers} {
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if strings.Contains(all[key], "${secret:"+secret+"}") {
				return p.places[place{AServer, s.Name, what + "." + key}]
			}
		}
	}
	return p.places[place{AServer, s.Name, ""}]
}

// lintServer warns of what looks like a secret in clear.
func (p *parser) lintServer(s *grants.Server) {
	for what, all := range map[string]map[string]string{"env": s.Env, "headers": s.Headers} {
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if value := all[key]; value != "" && !strings.Contains(value, "${secret:") && soundsSecret(key) {
				p.warn(p.places[place{AServer, s.Name, what + "." + key}], "server %s: %s stands here in clear; seal it, and write ${secret:NAME}", s.Name, key)
			}
		}
	}
}

// soundsSecret reports whether a variable or header of that name likely holds a
// secret.
func soundsSecret(name string) bool {
	name = strings.ToUpper(name)
	for _, word := range []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "API-KEY", "AUTHORIZATION", "CREDENTIAL", "PRIVATE_KEY"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// server returns a server of the document, or of the current state.
func (p *parser) server(name string) (grants.Server, bool) {
	s, known := p.document.Servers[name]
	if !known && p.env.Current != nil {
		s, known = p.env.Current.Servers[name]
	}
	return s, known
}

package vault

// OnStep makes Create call fn between its steps.
func OnStep(c *Config, fn func(step string)) { c.step = fn }

package io.fenceline.examples;
import org.junit.jupiter.api.Test;
class XTest { @Test void x() {} }

"""The one list of federations to be had; a new one is one entry here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kinfed.columns import unknown
from kinfed.data.catalogue.entry import Entry
from kinfed.data.catalogue.sources import FemnistImages, HeartFiles, PackagedTable

_ENTRIES = (
    Entry(
        name="hsb82",
        title="Mathematics achievement in 160 schools",
        unit="a school of the United States",
        target="mAch",
        agent="school",
        task="regression",
        rows=7185,
        agents=160,
        origin="High School and Beyond, 1982",
        licence="GPL (>= 2), as the R package mlmRev",
        citation="Raudenbush and Bryk (2002), Hierarchical Linear Models, Sage",
        source=PackagedTable("mlmRev", "Hsb82", "school"),
        sha256="01ebe7f2c4b0daa9dd0939a0462cb81d7f60617d991822ae7c499a384100d14e",
    ),
    Entry(
        name="london-exams",
        title="Exam scores in 63 schools of inner London",
        unit="a school",
        target="normexam",
        agent="school",
        task="regression",
        rows=4049,
        agents=63,
        origin="Inner London Education Authority, by way of the Centre for Multilevel Modelling",
        licence="GPL (>= 2), as the R package mlmRev",
        citation="Goldstein, Rasbash et al. (1993), Oxford Review of Education 19, 425-433",
        source=PackagedTable("mlmRev", "Exam", "school", leave_out=("student",)),
        sha256="a70e10719d56f50b41629f28c10fb1a5e5431828abd34b3e4e0e0155b9ba410b",
    ),
    Entry(
        name="chemistry",
        title="A-level chemistry in 131 education authorities",
        unit="a local education authority of Britain",
        target="score",
        agent="lea",
        task="regression",
        rows=31022,
        agents=131,
        origin="A-level chemistry, 1997, by way of the Centre for Multilevel Modelling",
        licence="GPL (>= 2), as the R package mlmRev",
        citation="Fielding, Yang and Goldstein (2003), Statistical Modelling 3, 127-153",
        source=PackagedTable("mlmRev", "Chem97", "lea", leave_out=("school", "student", "gcsecnt")),
        sha256="da20129711524d37f94a8e730b97b0bcdf5aceb40e4ec87746200c0e499ee63c",
    ),
    Entry(
        name="dutch-classes",
        title="Language scores in 111 Dutch school classes",
        unit="a class of the eighth grade",
        target="lang",
        agent="class",
        task="regression",
        rows=2126,
        agents=111,
        origin="a study of primary schools in the Netherlands",
        licence="GPL-2 or GPL-3, as the R package MASS",
        citation="Snijders and Bosker (1999), Multilevel Analysis, Sage",
        source=PackagedTable("MASS", "nlschools", "class"),
        sha256="8ff1e9b2cb8b0dd99bb46c8cc97a07d714aa367425ad99817e889897c31baaff",
    ),
    Entry(
        name="vietnam",
        title="What households spend in 194 communes of Vietnam",
        unit="a commune",
        target="lntotal",
        agent="commune",
        task="regression",
        rows=5999,
        agents=194,
        origin="World Bank, Vietnam Living Standards Survey, 1997",
        licence="GPL (>= 2), as the R package Ecdat",
        citation="Cameron and Trivedi (2005), Microeconometrics, Cambridge, 88-90",
        # Parts of the total would give the total away.
        source=PackagedTable("Ecdat", "VietNamH", "commune", leave_out=("lnmed", "lnrlfood", "lnexp12m")),
        sha256="2bcde47434506736058bdff82d5e54462e5cfe0d904609a0e36b42571822c5dd",
    ),
    Entry(
        name="contraception",
        title="Contraceptive use in 57 districts of Bangladesh",
        unit="a district",
        target="use",
        agent="district",
        task="classification",
        rows=1922,
        agents=57,
        origin="Bangladesh Fertility Survey, 1988",
        licence="GPL (>= 2), as the R package mlmRev",
        citation="Steele, Diamond and Amin (1996), Journal of the Royal Statistical Society A 159, 289-299",
        source=PackagedTable("mlmRev", "Contraception", "district", leave_out=("woman",)),
        sha256="d9a2464db0c6b1bf9be5d31ebc0ed054b86fcd0cf5b2b9e8925237184061cf07",
    ),
    Entry(
        name="immunization",
        title="Immunization of children in 101 communities of Guatemala",
        unit="a community",
        target="immun",
        agent="comm",
        task="classification",
        rows=1821,
        agents=101,
        origin="National Survey of Maternal and Child Health, Guatemala, 1987",
        licence="GPL (>= 2), as the R package mlmRev",
        citation="Rodriguez and Goldman (2001), Journal of the Royal Statistical Society A 164, 339-355",
        source=PackagedTable("mlmRev", "guImmun", "comm", leave_out=("kid", "mom")),
        sha256="4f2ddfe2b90bad89a800e8a21a14c78deb0fa828cb3c47f3c452c2b03213ab84",
    ),
    Entry(
        name="medicare",
        title="Deaths among patients of 40 hospitals in Arizona",
        unit="a hospital",
        target="died",
        agent="provnum",
        task="classification",
        rows=1449,
        agents=40,
        origin="Medicare inpatient records of one diagnosis, 1991",
        licence="GPL-2, as the R package COUNT",
        citation="Hilbe (2014), Modeling Count Data, Cambridge",
        source=PackagedTable("COUNT", "medpar", "provnum", leave_out=("type",)),
        sha256="14cbf06e236628f29fb23f8982358dcd0d36e764c96c516446a0dabaecdc0fc2",
    ),
    Entry(
        name="heart-disease",
        title="Heart disease in four hospitals",
        unit="a hospital in Cleveland, Hungary, Switzerland or Long Beach",
        target="disease",
        agent="hospital",
        task="classification",
        rows=920,
        agents=4,
        origin="Janosi, Steinbrunn, Pfisterer and Detrano, 1988",
        licence="CC BY 4.0",
        citation="Detrano et al. (1989), American Journal of Cardiology 64, 304-310",
        source=HeartFiles(),
        sha256="c389ea4affa5d889ac4c9da60d81540b5e8a9ff67c5b5a9636bad8ce13f9ebff",
    ),
    Entry(
        name="femnist",
        title="Handwritten characters of 192 writers",
        unit="a writer",
        target="y",
        agent="agent",
        task="classification",
        rows=42398,
        agents=192,
        origin="NIST Special Database 19, by way of LEAF",
        licence="LEAF: BSD-2-Clause; NIST: free to use",
        citation="Caldas et al. (2018), LEAF: A Benchmark for Federated Settings, arXiv 1812.01097",
        source=FemnistImages(),
        sha256=None,
    ),
)

CATALOGUE: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Real federations by name."""


def find_entry(name: str) -> Entry:
    """The entry of that name; `InputError` with the nearest one if there is none."""
    if name not in CATALOGUE:
        raise unknown("data set", name, CATALOGUE)
    return CATALOGUE[name]
